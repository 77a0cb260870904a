from strategies.ir.graph import Arg, DType, Function, FunctionRef, Graph, Node
from strategies.ir.resource_uses import resource_uses, written_inputs

RESOURCE = DType("resource")


def node(name, op, *inputs, **attrs):
    return Node(name=name, op=op, inputs=inputs, attrs=attrs)


def function(name, *nodes, args=("v",)):
    return Function(
        name=name,
        inputs=tuple(Arg(name=a, dtype=RESOURCE) for a in args),
        outputs=(),
        nodes=nodes,
        results={},
    )


READS = function("reads", node("r", "ReadVariableOp", "v"))
WRITES = function("writes", node("w", "AssignAddVariableOp", "v", "r:value:0"))
NESTED = function(
    "nested", node("call", "StatefulPartitionedCall", "a", "b", f=FunctionRef("second")), args=("a", "b")
)
SECOND = function(
    "second",
    node("r", "ReadVariableOp", "x"),
    node("w", "AssignVariableOp", "y", "r:value:0"),
    args=("x", "y"),
)
LIBRARY = {f.name: f for f in (READS, WRITES, NESTED, SECOND)}


def uses(*nodes):
    graph = Graph(nodes=(node("v", "VarHandleOp"), node("u", "VarHandleOp"), *nodes), functions=LIBRARY)
    return resource_uses(graph)


def test_reads_and_writes_in_graph_order():
    usage = uses(
        node("r", "ReadVariableOp", "v"),
        node("w", "AssignVariableOp", "v", "r"),
        node("g", "ResourceGather", "v", "ids"),
        node("s", "ResourceScatterAdd", "u", "ids", "g"),
    )
    assert usage["v"].reads == ("r", "g")
    assert usage["v"].writes == ("w",)
    assert usage["u"].writes == ("s",)


def test_through_identities_and_frames():
    usage = uses(node("i", "Identity", "v"), node("e", "Enter", "i"), node("w", "AssignVariableOp", "e", "x"))
    assert usage["v"].writes == ("w",)


def test_a_call_writes_what_its_functions_write():
    usage = uses(
        node("branch", "If", "p", "v", t=FunctionRef("reads"), e=FunctionRef("writes")),
        node("loop", "While", "u", c=FunctionRef("reads"), b=FunctionRef("reads")),
    )
    assert usage["v"].writes == ("branch",)
    assert usage["u"].reads == ("loop",)


def test_positions_survive_nesting():
    call = node("call", "StatefulPartitionedCall", "v", "u", f=FunctionRef("nested"))
    assert written_inputs(Graph(nodes=(call,), functions=LIBRARY), call, frozenset({0, 1}), {}) == {1}


def test_a_function_that_calls_itself_ends():
    loop = function("again", node("call", "PartitionedCall", "v", f=FunctionRef("again")))
    graph = Graph(nodes=(), functions={"again": loop})
    assert written_inputs(graph, loop.nodes[0], frozenset({0}), {}) == frozenset()


def test_an_unknown_op_counts_as_a_write():
    assert uses(node("x", "SomeNewOp", "v"))["v"].writes == ("x",)
