"""Types of attributes, arguments and handles in float64, and names of nodes that stay narrow."""

import pytest
from tensorflow.core.framework import full_type_pb2, op_def_pb2, types_pb2

from strategies.ir.graph import Arg, DType, Function, FunctionRef, Graph, Node, Shape
from strategies.tf_bridge.float64 import to_float64, widen, widen_attrs

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")


FLOAT, DOUBLE, INT = DType("float"), DType("double"), DType("int32")


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        ("half", "double"),
        ("bfloat16", "double"),
        ("float_ref", "double_ref"),
        ("complex64", "complex128"),
        ("double", "double"),
        ("int64", "int64"),
        ("resource", "resource"),
    ],
)
def test_types(narrow, wide):
    assert widen(DType(narrow)) == wide


def test_types_in_lists_and_bound_attributes_follow():
    attrs = {
        "_handle_dtypes": (FLOAT, INT),
        "branches": (FunctionRef("f", {"T": FLOAT}),),
        "shape": Shape((2,)),
    }
    assert widen_attrs(attrs) == {
        "_handle_dtypes": (DOUBLE, INT),
        "branches": (FunctionRef("f", {"T": DOUBLE}),),
        "shape": Shape((2,)),
    }


def test_attributes_without_floating_types_are_the_same_object():
    attrs = {"T": INT, "Tin": (INT, DType("resource")), "f": FunctionRef("f", {"T": INT})}
    assert widen_attrs(attrs) is attrs


def handle_arg(dtype):
    arg = op_def_pb2.OpDef.ArgDef(description="a handle")
    arg.handle_data.add(dtype=dtype)
    return arg


def test_handles_follow_and_full_types_are_left_to_inference():
    handle = handle_arg(types_pb2.DT_FLOAT)
    handle.experimental_full_type.type_id = full_type_pb2.TFT_TENSOR
    typed = tf.compat.v1.NodeDef()
    typed.experimental_type.type_id = full_type_pb2.TFT_FLOAT
    typed.experimental_debug_info.original_node_names.append("read")
    function = Function(
        name="f",
        inputs=(Arg(name="v", dtype=DType("resource"), extra=handle.SerializeToString()),),
        outputs=(Arg(name="y", dtype=FLOAT),),
        nodes=(
            Node(
                name="read",
                op="ReadVariableOp",
                inputs=("v",),
                attrs={"dtype": FLOAT},
                extra=typed.SerializeToString(),
            ),
        ),
        results={"y": "read:value:0"},
        arg_attrs={0: {"_handle_dtypes": (FLOAT,)}},
    )
    wide = to_float64(Graph(nodes=(), functions={"f": function})).functions["f"]
    assert wide.inputs[0].extra == handle_arg(types_pb2.DT_DOUBLE).SerializeToString()
    assert wide.outputs[0].dtype == DOUBLE
    assert wide.arg_attrs == {0: {"_handle_dtypes": (DOUBLE,)}}
    (read,) = wide.nodes
    assert read.attrs == {"dtype": DOUBLE}
    typed.ClearField("experimental_type")
    assert read.extra == typed.SerializeToString()
    again = Graph(nodes=(), functions={"f": wide})
    assert to_float64(again) is again


def test_types_left_to_their_defaults_are_said():
    # Both ops are of float unless they say otherwise; LRN has no double.
    graph = Graph(
        nodes=(
            Node(name="x", op="Placeholder", attrs={"dtype": FLOAT}),
            Node(name="relu", op="LeakyRelu", inputs=("x",)),
            Node(name="lrn", op="LRN", inputs=("relu",)),
        )
    )
    by_name = to_float64(graph).by_name
    assert by_name["relu"].attrs == {"T": DOUBLE}
    assert by_name["lrn/narrow"].attrs == {}
    assert by_name["lrn/narrow"].inputs == ("lrn/narrow_0",)
    assert by_name["lrn/narrow_0"].inputs == ("relu",)
    assert by_name["lrn"].op == "Cast"
    assert by_name["lrn"].inputs == ("lrn/narrow",)


def test_new_names_avoid_old_ones():
    graph = Graph(
        nodes=(
            Node(name="x", op="Placeholder", attrs={"dtype": FLOAT}),
            Node(name="lrn", op="LRN", inputs=("x",), attrs={"T": FLOAT}),
            Node(name="lrn/narrow", op="NoOp"),
        )
    )
    assert set(to_float64(graph).by_name) == {"x", "lrn", "lrn/narrow", "lrn/narrow_", "lrn/narrow_0"}
