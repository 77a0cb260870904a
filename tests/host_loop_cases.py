"""Graphs with host loops, each for a rule of resharding: those that it changes, and those that it leaves."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from host_loop_graphs import (
    FLOAT,
    RESOURCE,
    HostLoopGraph,
    LoopVariable,
    call,
    called_loop,
    changed,
    graph_of,
    handle,
    in_function,
    metadata,
    nested,
    program,
)

from strategies.ir.graph import FunctionRef, Graph, Node
from strategies.passes.tpu.computations import Sharding

W, M, X = LoopVariable(name="w"), LoopVariable(name="m"), LoopVariable(name="x")
NOTHING = "needs a variable that may be sharded and that in its loop its executes alone use, got none"
NOT_ALONE = (
    "in its loop executes alone must use each variable that may be sharded already, got another use of "
    "argument 0"
)
NO_LOOP = "must be in a loop of the host, got it in none"
NOT_ONE_CALL = "must be in a function that is called in one place, so that its format is known there"
NOT_AWAITED = (
    "every iteration must make its executes and wait for them, got 'loop/execute_1', which is not between "
    "the loop's Switches and its NextIterations"
)


def loop(*variables: LoopVariable, **fields: object) -> HostLoopGraph:
    return HostLoopGraph(variables=variables or (W, M), **fields)  # type: ignore[arg-type]


def read(ref: str, name: str = "loop/read") -> Node:
    inputs = (ref, "^loop/count/body")
    return Node(name=name, op="ReadVariableOp", inputs=inputs, attrs={"dtype": FLOAT})


def enter(source: str, name: str, *, is_constant: bool = True) -> Node:
    attrs = {
        "T": RESOURCE,
        "frame_name": b"loop",
        "is_constant": is_constant,
        "parallel_iterations": 10,
    }
    return Node(name=name, op="Enter", inputs=(source,), attrs=attrs)


def in_outer_loop() -> Graph:
    inner = loop(W, replace(M, way="iterated"))
    nodes = (*inner.handles().values(), *nested(inner))
    return Graph(nodes=nodes, functions={"step": program(2)})


def read_in_function() -> Graph:
    """The loop calls a function that reads a variable by the handle that it is given."""
    reads = in_function([read("h").changed(inputs=("h",))], {"h": RESOURCE}, {}, "reads")
    node = call("loop/call", "reads", {"loop/w_0/enter": RESOURCE}, ())
    graph = graph_of(loop(), more=[node.changed(inputs=(*node.inputs, "^loop/count/body"))])
    return replace(graph, functions={**graph.functions, "reads": reads})


def made_in_function() -> Graph:
    """The loop calls a function that makes a handle of a variable by its name."""
    own = handle("own", (3,), "/device:CPU:1", shared_name="m_1")
    reads = in_function([own, read("own").changed(inputs=("own",))], {}, {}, "reads")
    node = call("loop/call", "reads", {}, ()).changed(inputs=("^loop/count/body",))
    graph = graph_of(loop(), more=[node])
    return replace(graph, functions={**graph.functions, "reads": reads})


def second_handle(
    device: str = "/device:CPU:0", shared_name: str = "w_0", by: Sequence[Node] = (), ref: str = "again"
) -> Graph:
    """The loop reads a variable by a handle that another node makes.

    Args:
        by: nodes that pass the handle on before the loop, by this reference.
    """
    again = handle("again", (3,), device, shared_name=shared_name)
    return graph_of(loop(), more=[again, *by, enter(ref, "loop/again"), read("loop/again")])


def unnamed() -> Graph:
    """Variables w and m of the first replica have no shared name: on one device these are one."""
    graph = graph_of(loop(W, M, X))
    for name in ("w_0", "m_0"):
        graph = changed(graph, name, attrs={"shared_name": b""})
    return graph


def with_second_computation(graph: Graph, *names: str) -> Graph:
    """The loop compiles and executes another program, which takes these variables of each replica."""
    nodes: list[Node] = []
    executes = []
    for node in graph.nodes:
        if node.name == "loop/compile":
            attrs = {**node.attrs, "metadata": metadata(2, [Sharding.TENTATIVE] * len(names))}
            attrs["function"] = FunctionRef("other")
            nodes.append(node.changed(name="loop/other", attrs=attrs))
        if node.op == "TPUExecuteAndUpdateVariables":
            replica = node.name[-1]
            entered = (f"loop/{name}_{replica}/enter" for name in names)
            attrs = {
                **node.attrs,
                "Targs": (RESOURCE,) * len(names),
                "device_var_reads_indices": tuple(range(len(names))),
                "device_var_updates_indices": tuple(range(len(names))),
            }
            inputs = (*entered, "loop/other:1", "^loop/count/body")
            nodes.append(node.changed(name=f"loop/other_{replica}", inputs=inputs, attrs=attrs))
            executes.append(f"^loop/other_{replica}")
        is_last = node.name == "loop/count/next"
        nodes.append(node.changed(inputs=(*node.inputs, *executes)) if is_last else node)
    functions = {**graph.functions, "other": program(len(names), name="other")}
    return replace(graph, nodes=tuple(nodes), functions=functions)


def two_computations(*names: str) -> Graph:
    graph = graph_of(loop(W, M, X))
    mine = ("loop/w_", "loop/m_")
    for replica in range(2):
        execute = graph.by_name[f"loop/execute_{replica}"]
        inputs = tuple(ref for ref in execute.inputs if not ref.startswith("loop/x_"))
        attrs = {name: value[: len(mine)] for name, value in execute.attrs.items() if name != "Tresults"}
        graph = changed(graph, execute.name, inputs=inputs, attrs=attrs)
    attrs = {"metadata": metadata(2, [Sharding.TENTATIVE] * len(mine))}
    graph = changed(graph, "loop/compile", attrs=attrs)
    functions = {"step": program(len(mine))}
    return with_second_computation(replace(graph, functions=functions), *names)


def one_variable_twice() -> Graph:
    """Every execute takes w at two positions, and m at one."""
    graph = graph_of(loop(W, M, X))
    for replica in range(2):
        execute = graph.by_name[f"loop/execute_{replica}"]
        inputs = tuple(ref.replace("loop/x_", "loop/w_") for ref in execute.inputs)
        graph = changed(graph, execute.name, inputs=inputs)
    return graph


def swapped() -> Graph:
    """Each iteration hands on the handles of w and m of the first replica in each other's place."""
    graph = graph_of(loop(*(replace(variable, way="iterated") for variable in (W, M, X))))
    graph = changed(graph, "loop/w_0/next", inputs=("loop/m_0/body",))
    return changed(graph, "loop/m_0/next", inputs=("loop/w_0/body",))


def unawaited() -> Graph:
    """Nothing in the loop waits for the second execute."""
    graph = graph_of(loop(n_results=0))
    following = graph.by_name["loop/count/next"]
    inputs = tuple(ref for ref in following.inputs if ref != "^loop/execute_1")
    return changed(graph, following.name, inputs=inputs)


def without_loop() -> Graph:
    """A computation that is executed once."""
    graph = graph_of(loop())
    ops = ("TPUCompile", "TPUExecuteAndUpdateVariables", "VarHandleOp")
    nodes = [
        node.changed(
            inputs=tuple(
                ref.removeprefix("loop/").removesuffix("/enter") if ref.endswith("/enter") else ref
                for ref in node.inputs
                if ref[0] != "^"
            )
        )
        for node in graph.nodes
        if node.op in ops
    ]
    return graph.with_nodes(nodes)


def two_call_sites() -> Graph:
    graph = called_loop(loop())
    return graph.with_nodes((*graph.nodes, graph.by_name["step"].changed(name="again")))


def in_while_node() -> Graph:
    """A While node calls the function of the loop as its body."""
    graph = called_loop(loop())
    function = FunctionRef("train")
    attrs = {"T": (RESOURCE,) * 4, "body": function, "cond": function}
    return graph.with_nodes(
        replace(node, op="While", attrs=attrs) if node.name == "step" else node for node in graph.nodes
    )


CHANGED: Mapping[str, Callable[[], Graph]] = {
    "simple": lambda: graph_of(loop()),
    "in-function": lambda: called_loop(loop()),
    "nested": in_outer_loop,
    "identities": lambda: graph_of(loop(replace(W, n_identities=2))),
    "loop-variable": lambda: graph_of(loop(replace(W, way="iterated", n_identities=1))),
    "shared": lambda: graph_of(loop(replace(W, shared=True), M)),
    "read-elsewhere": lambda: graph_of(loop(readers=["w_0"])),
    "disallowed": lambda: graph_of(loop(replace(W, sharding=Sharding.DISALLOWED), M)),
    "allowed": lambda: graph_of(loop(replace(W, sharding=Sharding.ALLOWED), M)),
    "zero-trip": lambda: graph_of(loop(W, n_iterations=0)),
    "two-loops": lambda: graph_of(loop(W), loop(M, name="second")),
    "one-of-two-loops": lambda: graph_of(
        loop(W), loop(M, name="second", metadata=metadata(3, [Sharding.TENTATIVE]))
    ),
    "two-computations": lambda: two_computations("x"),
    "two-computations-in-common": lambda: two_computations("x", "m"),
    "one-variable-twice": one_variable_twice,
    "second-handle": second_handle,
    "unnamed": unnamed,
    "read-in-function": read_in_function,
    "swapped": swapped,
    "made-in-function": made_in_function,
}
"""Name → a graph in which something is resharded."""

_TWO_CORES = "num_cores_per_replica must be 1, got 2: each replica's program is sharded already"
OWN = handle("loop/own", (3,), "", shared_name="w_0").changed(inputs=("^loop/count/body",))
_ELSEWHERE = Node(name="fed", op="Placeholder", attrs={"dtype": RESOURCE})
LEFT: Mapping[str, tuple[Callable[[], Graph], Mapping[str, str]]] = {
    "no computation": (lambda: Graph(nodes=(handle("w", (3,), ""),)), {}),
    "no loop": (without_loop, {"loop/compile": NO_LOOP}),
    "disallowed": (
        lambda: graph_of(loop(replace(W, sharding=Sharding.DISALLOWED))),
        {"loop/compile": NOTHING},
    ),
    "allowed and read": (
        lambda: graph_of(loop(replace(W, sharding=Sharding.ALLOWED), readers=["w_0"])),
        {"loop/compile": NOT_ALONE},
    ),
    "one of two allowed and read": (
        lambda: graph_of(loop(replace(W, sharding=Sharding.ALLOWED), M, readers=["w_1"])),
        {"loop/compile": NOT_ALONE},
    ),
    "read in a function": (
        lambda: called_loop(loop(W, readers=["w_0"])),
        {"loop/compile": NOTHING},
    ),
    "in a While node": (in_while_node, {"loop/compile": NOT_ONE_CALL}),
    "two cores for each replica": (
        lambda: graph_of(loop(n_cores_per_replica=2)),
        {"loop/compile": _TWO_CORES},
    ),
    "fewer executes": (
        lambda: graph_of(loop(n_executes=1)),
        {"loop/compile": "needs an execute for each of 2 replicas, got 1"},
    ),
    "more executes": (
        lambda: graph_of(loop(n_executes=3)),
        {"loop/compile": "needs an execute for each of 2 replicas, got 3"},
    ),
    "no metadata": (
        lambda: graph_of(loop(metadata=b"\xff\xff")),
        {"loop/compile": "metadata must be a TPUCompileMetadataProto, got 2 bytes that are none"},
    ),
    "more arguments": (
        lambda: graph_of(loop(metadata=metadata(2, [Sharding.TENTATIVE] * 3))),
        {"loop/compile": "execute 'loop/execute_0' must take 3 arguments and a key, got 3 inputs"},
    ),
    "dynamic shapes": (
        lambda: changed(graph_of(loop()), "loop/compile", attrs={"NumDynamicShapes": 1}),
        {"loop/compile": "shapes must be known when it compiles, got 1 that are not"},
    ),
    "unawaited": (unawaited, {"loop/compile": NOT_AWAITED}),
    "several call sites": (two_call_sites, {"loop/compile": NOT_ONE_CALL}),
    "shared by some": (
        lambda: changed(
            graph_of(loop(W, n_replicas=3)),
            "loop/execute_2",
            inputs=("loop/w_1/enter", "loop/compile:1", "^loop/count/body"),
        ),
        {"loop/compile": NOTHING},
    ),
    "handle made in the loop": (
        lambda: graph_of(
            loop(W),
            more=[handle("loop/own", (3,), "", shared_name="w_0").changed(inputs=("^loop/count/body",))],
        ),
        {"loop/compile": NOTHING},
    ),
    "handle fed": (
        lambda: graph_of(loop(W), more=[_ELSEWHERE, enter("fed", "loop/fed"), read("loop/fed")]),
        {"loop/compile": NOTHING},
    ),
}
"""Name → a graph that is left as it is, and the reason for each computation."""
