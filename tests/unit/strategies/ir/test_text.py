from pathlib import Path

import pytest

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
from strategies.ir.tensor_text import tensor_text
from strategies.ir.text import attr_text, to_text

GOLDEN = Path(__file__).parents[3] / "golden" / "ir" / "text.txt"

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
            control_results={"sum": "sum"},
            attrs={"_noinline": True},
            arg_attrs={0: {"_user_specified_name": b"a"}},
            extra=b"signature",
        )
    },
    extra=b"versions",
)


def test_text_is_as_it_was():
    assert to_text(GRAPH) == GOLDEN.read_text()


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
    assert attr_text(attr) == text


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
