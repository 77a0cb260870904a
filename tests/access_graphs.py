"""Small graphs that read and assign a variable, also in branches, loops and functions."""

from strategies.ir.graph import Arg, DType, Function, FunctionRef, Node

V = Arg(name="v", dtype=DType("resource"))
X = Arg(name="x", dtype=DType("float"))
OUT = Arg(name="out", dtype=DType("float"))
SAME = Arg(name="same", dtype=DType("resource"))
SERVER = "/job:worker/task:0"


def node(name, op, *inputs, device="", **attrs):
    return Node(name=name, op=op, inputs=inputs, attrs=attrs, device=device)


def function(name, *nodes, result="x", control=(), inputs=(V, X)):
    return Function(
        name=name,
        inputs=inputs,
        outputs=(SAME, OUT),
        nodes=nodes,
        results={"same": "v", "out": result},
        control_results={name: name for name in control},
    )


HANDLE = node("v", "VarHandleOp", shared_name=b"weights", device=SERVER)
GRADIENT = node("gradient", "Op")
PREDICATE = node("predicate", "Op")
SHRINKS = function("shrinks", node("assign", "AssignVariableOp", "v", "v"), control=["assign"])
MOVES = function("moves", node("move", "AssignSubVariableOp", "v", "x"), control=["move"])
READS = function("reads", node("read", "ReadVariableOp", "v"), result="read:value:0", control=["read"])
READS_FOR_NOBODY = function("reads_for_nobody", node("read", "ReadVariableOp", "v"))
GOES_ON = Function(
    name="goes_on",
    inputs=(V, X),
    outputs=(OUT,),
    nodes=(node("less", "Less", "x", "x"),),
    results={"out": "less:z:0"},
)
NESTED = function(
    "nested",
    node("inner", "StatefulPartitionedCall", "v", "x", f=FunctionRef("shrinks")),
    control=["inner"],
)
LIBRARY = {f.name: f for f in (SHRINKS, MOVES, READS, READS_FOR_NOBODY, GOES_ON, NESTED)}


def branch(first, second, *waits, predicate="predicate"):
    return node(
        "call",
        "If",
        predicate,
        "v",
        "gradient",
        *waits,
        then_branch=FunctionRef(first),
        else_branch=FunctionRef(second),
    )


def loop(body, *waits):
    return node("call", "While", "v", "gradient", *waits, cond=FunctionRef("goes_on"), body=FunctionRef(body))


def call(body, *waits):
    return node("call", "StatefulPartitionedCall", "v", "gradient", *waits, f=FunctionRef(body))
