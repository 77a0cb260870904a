import re
from pathlib import Path

import pytest
from graph_text import exact_text, from_text
from hypothesis import given
from hypothesis import strategies as st

from strategies.errors import GraphError
from strategies.ir.graph import (
    Arg,
    AttrPlaceholder,
    DType,
    Function,
    FunctionRef,
    Graph,
    Node,
    OpaqueAttr,
    Shape,
    TensorValue,
)
from strategies.ir.tensor_proto import tensor_proto, tensor_text
from strategies.ir.text import to_text

GOLDEN = Path(__file__).parents[3] / "golden"

# TensorProtos as TensorFlow writes them: dtype, shape, then values or tensor_content.
SCALAR = b"\x08\x01\x12\x00*\x04\x00\x00\xc0?"
PAIR = b'\x08\x03\x12\x04\x12\x02\x08\x02"\x08\x01\x00\x00\x00\xfe\xff\xff\xff'

GRAPH = Graph(
    nodes=(
        Node(name="x", op="Placeholder", attrs={"shape": Shape((-1, 3)), "dtype": DType("float")}),
        Node(name="c", op="Const", attrs={"value": TensorValue(SCALAR), "dtype": DType("float")}),
        Node(
            name="call",
            op="PartitionedCall",
            inputs=("x", "c:1", "^x"),
            attrs={
                "f": FunctionRef("f", {"T": AttrPlaceholder("U")}),
                "Tin": (DType("float"), DType("float")),
                "config": b"",
                "_class": (b"loc:@x",),
                "n": 3,
                "ratio": 0.5,
                "on": True,
                "unset": OpaqueAttr(b""),
                "shape": Shape(None),
            },
            device="/device:CPU:0",
            extra=b"debug",
        ),
        Node(name="last", op="NoOp", inputs=("^call",)),
    ),
    functions={
        "f": Function(
            name="f",
            inputs=(Arg(name="a", dtype=DType("float")), Arg(name="b", dtype=None, extra=b"T")),
            outputs=(Arg(name="y", dtype=DType("float")),),
            nodes=(Node(name="sum", op="AddV2", inputs=("a", "b"), attrs={"T": DType("float")}),),
            results={"y": "sum:z:0"},
            control_outputs=("sum",),
            control_results={"sum": "sum"},
            attrs={"_noinline": True},
            arg_attrs={0: {"_user_specified_name": b"a"}},
            extra=b"signature",
        )
    },
    extra=b"versions",
)


def test_text_is_as_it_was():
    assert to_text(GRAPH) == (GOLDEN / "ir" / "text.txt").read_text()


def test_text_does_not_depend_on_the_order_of_attributes():
    turned = Graph(
        nodes=tuple(Node(name=n.name, op=n.op, attrs=dict(reversed(n.attrs.items()))) for n in GRAPH.nodes)
    )
    straight = Graph(nodes=tuple(Node(name=n.name, op=n.op, attrs=n.attrs) for n in GRAPH.nodes))
    assert to_text(turned) == to_text(straight)


@pytest.mark.parametrize(
    ("attr", "text"),
    [
        (1, "1"),
        (1.0, "1.0"),
        (True, "True"),
        (b"it's\n", '"it\'s\\n"'),
        (b"x" * 81, "bytes(81) 4d1f7bb8"),
        (DType("int64"), "int64"),
        ((), "[]"),
        (Shape(()), "<>"),
        (OpaqueAttr(b"x"), "opaque 2d711642"),
    ],
)
def test_short_forms(attr, text):
    graph = Graph(nodes=(Node(name="n", op="Op", attrs={"a": attr}),))
    assert to_text(graph) == f"n = Op() {{a={text}}}\n"


@pytest.mark.parametrize(
    ("proto", "text"),
    [
        (SCALAR, "float<> [1.5]"),
        (PAIR, "int32<2> [1, -2]"),
        (b"\x08\x01\x12\x08\x12\x02\x08\x02\x12\x02\x08\x03*\x04\x00\x00\x00\x00", "float<2,3> [0.0, …]"),
        (b"\x08\x09\x12\x00\x52\x0a" + b"\xff" * 9 + b"\x01", "int64<> [-1]"),
        (b"\x08\x0a\x12\x00\x5a\x01\x01", "bool<> [True]"),
        (b"\x08\x07\x12\x00\x42\x02hi", "string<> [b'hi']"),
        (b"\x08\x01\x12\x04\x12\x02\x08\x00", "float<0>"),
        (b"\x08\x13\x12\x00\x6a\x03\x80\xf8\x00", "half<> [1.0]"),
        (b"\x08\x63\x12\x00", "type 99<> sha256:"),
    ],
)
def test_tensors_in_a_few_words(proto, text):
    assert tensor_text(proto).startswith(text)


def test_many_values_become_a_digest():
    proto = b'\x08\x01\x12\x04\x12\x02\x08\x09"\x24' + bytes(36)
    other = proto[:-1] + b"\x01"
    assert tensor_text(proto).startswith("float<9> sha256:")
    assert tensor_text(proto) != tensor_text(other)


def test_exact_text_gives_the_same_graph():
    assert from_text(exact_text(GRAPH)) == GRAPH


@pytest.mark.parametrize("file", sorted((GOLDEN / "passes").glob("*.txt")), ids=lambda file: file.stem)
def test_what_passes_make_is_read_and_written_as_it_was(file):
    sections = re.split("^## .*$", file.read_text(), flags=re.MULTILINE)
    for section in filter(str.strip, sections):
        nodes = [line for line in section.splitlines() if " = " in line and not line.startswith("#")]
        assert to_text(from_text(section)).splitlines() == nodes


NAMES = st.from_regex(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]{0,8}", fullmatch=True)
PLAIN = st.one_of(
    st.integers(min_value=-(2**63), max_value=2**63 - 1),
    st.floats(allow_nan=False),
    st.booleans(),
    st.binary(max_size=100),
    st.sampled_from(["float", "int64", "float_ref", "bfloat16", "nan_type", "info"]).map(DType),
    st.one_of(st.none(), st.lists(st.integers(-1, 2**40), max_size=3).map(tuple)).map(Shape),
    st.binary(max_size=8).map(OpaqueAttr),
    st.sampled_from([SCALAR, PAIR, PAIR[:-1] + b"x", SCALAR * 2]).map(TensorValue),
    NAMES.map(FunctionRef),
    st.from_regex(r"[A-Za-z0-9_.-]+", fullmatch=True).map(AttrPlaceholder),
)


@given(PLAIN | st.lists(PLAIN, max_size=3).map(tuple), NAMES, st.binary(max_size=5))
def test_every_attribute_comes_back(attr, name, extra):
    graph = Graph(nodes=(Node(name=name, op="Op", inputs=(f"^{name}",), attrs={"a": attr}, extra=extra),))
    (node,) = from_text(exact_text(graph)).nodes
    assert (node.name, node.inputs, node.extra) == (name, (f"^{name}",), extra)
    assert repr(node.attrs) == repr({"a": attr})  # 1 is not 1.0, nor True


@pytest.mark.parametrize(
    ("dtype", "values"),
    [("<f4", [1.5, -0.25]), ("<f8", [1e300]), ("<i4", [1, -2, 3]), ("?", [True, False]), ("<f2", [1.0, 0.5])],
)
def test_values_of_constants_come_back(dtype, values):
    name = {"<f4": "float", "<f8": "double", "<i4": "int32", "?": "bool", "<f2": "half"}[dtype]
    for output in (values, values[:1]):
        proto = tensor_proto(name, output)
        text = f"c = Const() {{value={tensor_text(proto)}}}\n"
        assert from_text(text).nodes[0].attrs["value"] == TensorValue(proto)
        assert exact_text(from_text(text)) == text


@pytest.mark.parametrize("name", ["def", "return", "wait", "argument"])
def test_nodes_may_be_called_like_words_of_the_text(name):
    node = Node(name=name, op="NoOp")
    function = Function(name="f<lambda>", inputs=(), outputs=(), nodes=(node,), results={})
    graph = Graph(nodes=(node,), functions={"f<lambda>": function})
    assert from_text(to_text(graph)) == graph


def test_not_every_nan_is_the_same():
    for bits in (b"\x00\x00\xc0\xff", b"\x00\x00\xc0\x7f"):
        value = TensorValue(b"\x08\x01\x12\x00*\x04" + bits)
        graph = Graph(nodes=(Node(name="c", op="Const", attrs={"value": value}),))
        assert from_text(exact_text(graph)) == graph


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = Op(\n", "line 1: expected an input, got ''"),
        ("\na = Op(b c)\n", "line 2: expected ', ', got ' c)'"),
        ("a Op()\n", "line 1: expected ' = ', got ' Op()'"),
        ("a = Op() {n=}\n", "line 1: expected an attribute, got '}'"),
        ("a = Op() {v=opaque 2d711642}\n", "expected bytes in base64, not their digest"),
        ("a = Op() {v=bytes(81) 4d1f7bb8}\n", "expected all bytes, not their digest"),
        ("a = Op() {v=float<9> sha256:00000000}\n", "expected all values, not their digest"),
        ("a = Op() {v=int32<2> [1]}\n", "expected 2 values for the shape, got 1"),
        ("a = Op() {v=int32<1> [300000000000]}\n", "expected values of int32"),
        ("a = Op() {v=resource<> [1]}\n", "expected a type with values"),
        ("a = Op() and more\n", "expected the end of the line, got 'and more'"),
        ("def f(x) -> (y)\n", "line 1: expected ':', got ''"),
        ("a = Op() {x='é'}\n", "line 1: expected a line of a graph (bytes can only contain ASCII"),
        ("a = Op() {x=opaque base64:abc}\n", "line 1: expected a line of a graph (Incorrect padding"),
        ("a = Op() {x=" + "[" * 3000 + "}\n", "line 1: expected a line of a graph (maximum recursion depth"),
        ("a = Op() {x=" + "9" * 5000 + "}\n", "line 1: expected a line of a graph (Exceeds the limit"),
        ("a = Op() {x=1, x=2}\n", "line 1: expected each attribute once, and x is there already"),
        ("a = Op()\na = Op()\n", "line 2: expected each name once, and a is there already"),
        ("# rest base64:YQ==\n# rest base64:YQ==\n", "line 2: expected one rest of a graph"),
        ("a = Op()\n  b = Op()\n", "line 2: expected a node at the line's beginning"),
        ("def f() -> ():\na = Op()\n  b = Op()\n", "line 3: expected a node at the line's beginning"),
        ("a = Op() {v=int32<1> [1.5]}\n", "expected values of int32, got 1.5"),
        ("a = Op() {v=bool<1> [7]}\n", "expected values of bool, got 7"),
        ("a = Op() {v=float<1> [b'1']}\n", "expected values of float, got b'1'"),
        ("a = Op() {v=string<1> [1]}\n", "expected values of string, got 1"),
        ("a = Op() {v=half<1> [1000000000.0]}\n", "expected values of half (overflow"),
        ("a = Op() {v=float<9999999999999999999> [1.0, …]}\n", "values for the shape, got 1"),
    ],
)
def test_what_cannot_be_read_names_line_and_rule(text, message):
    with pytest.raises(GraphError, match=re.escape(message)):
        from_text(text)
