from dataclasses import replace

import pytest

from strategies.errors import GraphError
from strategies.ir.graph import Arg, DType, Function, FunctionRef, Graph, Node
from strategies.ir.graph_rules import verify

X = Arg(name="x", dtype=DType("float"))
Y = Arg(name="y", dtype=DType("float"))
GOOD = Function(
    name="f",
    inputs=(X,),
    outputs=(Y,),
    nodes=(
        Node(name="double", op="Add", inputs=("x", "x")),
        Node(name="wait", op="NoOp", inputs=("^double",)),
    ),
    results={"y": "double:z:0"},
    control_results={"wait": "wait"},
)


def node(name, *inputs, op="Op", **attrs):
    return Node(name=name, op=op, inputs=inputs, attrs=attrs)


def library(**changes):
    return Graph(nodes=(), functions={"f": replace(GOOD, **changes)})


def test_a_good_graph_passes():
    nodes = (
        node("call", "late", "^late", f=FunctionRef("f"), _class=(b"loc:@late",)),
        node("direct", op="f"),
        node("none", f=FunctionRef("")),
        node("late"),
    )
    verify(Graph(nodes=nodes, functions={"f": GOOD}))


def test_a_loop_passes():
    verify(Graph(nodes=(node("m", "n", op="Merge"), node("n", "m", op="NextIteration"))))


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (Graph(nodes=(node("a"), node("a"))), "node 'a': names are unique"),
        (Graph(nodes=(node(""),)), "needs a name"),
        (Graph(nodes=(node("a", op=""),)), "needs a name and an op"),
        (Graph(nodes=(node("a", "gone:1"),)), "node 'a': input 'gone:1' comes from no node"),
        (Graph(nodes=(node("a", "^gone"),)), "node 'a': input '\\^gone' comes from no node"),
        (Graph(nodes=(node("a", ""),)), "node 'a': input '' comes from no node"),
        (Graph(nodes=(node("b"), node("a", "^b", "b"))), "node 'a': control inputs come last"),
        (Graph(nodes=(node("a", "b"), node("b", "a"))), "needs it too"),
        (Graph(nodes=(node("m", "n", op="Merge"), node("n", "m"))), "needs it too"),
        (Graph(nodes=(node("n", "m", op="NextIteration"), node("m", "n"))), "needs it too"),
        (Graph(nodes=(node("a", f=FunctionRef("g")),)), "node 'a': calls function 'g'"),
        (Graph(nodes=(node("a", f=(FunctionRef("g"),)),)), "calls function 'g'"),
        (Graph(nodes=(node("a", _class=(b"loc:@gone",)),)), "colocated with 'gone'"),
        (Graph(nodes=(), functions={"g": GOOD}), "function 'g': .* is called 'f'"),
        (library(inputs=(X, X)), "function 'f': argument names are unique"),
        (library(results={}), "function 'f': result 'y' has no tensor"),
        (library(results={"y": "gone:z:0"}), "function 'f': result 'y' is 'gone:z:0'"),
        (library(results={"y": "x", "w": "x"}), "result 'w' is not in the signature"),
        (library(control_results={"c": "gone"}), "control result 'c' is node 'gone'"),
        (library(nodes=(node("double", "gone"),)), "function 'f': node 'double': input 'gone'"),
        (library(nodes=(node("x"),)), "function 'f': node 'x': names are unique"),
        (library(attrs={"g": FunctionRef("gone")}), "function 'f': attributes: calls function 'gone'"),
        (library(nodes=(node("double", f=FunctionRef("gone")),)), "node 'double': calls function 'gone'"),
    ],
)
def test_a_broken_rule_is_named(graph, message):
    with pytest.raises(GraphError, match=message) as caught:
        verify(graph)
    assert "\n" not in str(caught.value)


def test_a_result_may_be_an_argument():
    verify(library(results={"y": "x"}))
