"""Resharded host loops: they import, and leave behind what they do with their variables whole."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

import core_steps
from emulated_loops import Outcome, both, core_program, device, first_values, members, run
from host_loop_cases import CHANGED
from host_loop_graphs import (
    FLOAT,
    INT32,
    RESOURCE,
    HostLoopGraph,
    LoopVariable,
    call,
    called_loop,
    graph_of,
    in_function,
    nested,
)

from strategies.errors import GraphError
from strategies.ir.graph import DType, Function, Graph, Node
from strategies.numerics.resharding import part_length
from strategies.passes.tpu.computations import Sharding
from strategies.passes.tpu.emulate_cores import lower_computations
from strategies.passes.tpu.host_loop_reshard import reshard_host_loops
from strategies.tf_bridge.graphdef import serialize_graph

DTYPES = {"float32": FLOAT, "float64": DType("double"), "int32": INT32}
FOUR_ROUNDINGS = 4 * float(np.finfo(np.float32).eps)
COMPILE = "loop/compile"
Build = Callable[[HostLoopGraph], Graph]


def loop_of(
    names: str,
    n_replicas: int,
    *,
    shape: Sequence[int] = (7,),
    dtype: str = "float32",
    k: int = 3,
    **variables: dict[str, object],
) -> HostLoopGraph:
    """A loop whose variables have names of one letter; x holds what a replica sees, t is a scalar."""
    loop_variables = [
        LoopVariable(
            name=name,
            shape=() if name == "t" else tuple(shape),
            dtype=DTYPES[dtype],
            sharding=Sharding.DISALLOWED if name == "x" else Sharding.TENTATIVE,
            **variables.get(name, {}),
        )
        for name in names
    ]
    devices = [device(replica) for replica in range(n_replicas)]
    return HostLoopGraph(variables=loop_variables, n_replicas=n_replicas, n_iterations=k, devices=devices)


def built(loop: HostLoopGraph, step: Callable[..., object], dtype: str, build: Build = graph_of) -> Graph:
    """The graph of a loop that runs a step."""
    weight = loop.variables[0]
    program = core_program(
        step, len(loop.variables), n=loop.n_replicas, shape=tuple(weight.shape), dtype=dtype
    )
    graph = build(loop)
    return replace(graph, functions={**graph.functions, "step": program})


def outcomes(
    step: Callable[..., object], names: str, n_replicas: int, *, dtype: str = "float32", **options: object
) -> tuple[Outcome, Outcome]:
    loop = loop_of(names, n_replicas, dtype=dtype, **options)
    values = first_values(loop)
    if dtype == "int32":
        first = np.arange(values["w_0"].size, dtype=np.int32) + 3
        values = {name: first if name[0] != "m" else value for name, value in values.items()}
    return both(built(loop, step, dtype), values, n_replicas=n_replicas, labels=[COMPILE])


def noise(
    step: Callable[..., object], names: str, n_replicas: int, whole: Outcome, **options: object
) -> float:
    """Error of the loop with whole variables against the same in double precision."""
    loop = loop_of(names, n_replicas, dtype="float64", **options)
    values = first_values(loop_of(names, n_replicas, **options))
    doubles = {name: value.astype(np.float64) for name, value in values.items()}
    return whole.error(run(built(loop, step, "float64"), doubles, n_replicas=n_replicas))


def assert_counts(outcome: Outcome, *, n_iterations: int, n_runs: int = 2, label: str = COMPILE) -> None:
    """Every run takes variables apart once and puts them together once, however many iterations it has."""
    n_real = n_runs if n_iterations else 0
    for counts in outcome.counts[label]:
        assert counts["reshards"] == n_runs * n_iterations
        assert counts["shards"] == counts["unshards"] == n_real


@pytest.mark.parametrize("name", CHANGED)
def test_every_rewritten_graph_imports(name):
    graph = reshard_host_loops(CHANGED[name]()).graph
    assert imported(graph) == {node.name for node in graph.nodes}
    if name == "one-of-two-loops":
        with pytest.raises(GraphError, match="needs an execute for each of 3 replicas, got 2"):
            lower_computations(graph, members(2))
    else:
        assert imported(lower_computations(graph, members(2))) >= {
            n.name for n in graph.nodes if n.op == "Exit"
        }


def imported(graph: Graph) -> set[str]:
    with tf.Graph().as_default() as as_default:
        tf.import_graph_def(tf.compat.v1.GraphDef.FromString(serialize_graph(graph)), name="")
        return {operation.name for operation in as_default.get_operations()}


@pytest.mark.parametrize("n_replicas", [2, 4, 8])
@pytest.mark.parametrize(
    ("step", "names"),
    [(core_steps.momentum, "wmx"), (core_steps.adam, "wmvtx"), (core_steps.adam_by_assignments, "wmvx")],
)
def test_a_loop_on_parts_is_the_loop(step, names, n_replicas, record_property):
    whole, parted = outcomes(step, names, n_replicas)
    floor = noise(step, names, n_replicas, whole)
    error = parted.error(whole)
    record_property("error", error)
    assert error <= max(floor, FOUR_ROUNDINGS)
    assert_counts(parted, n_iterations=3)
    for counts in parted.counts[COMPILE]:
        sizes = [1 if name == "t" else 7 for name in names if name != "x"]
        assert counts["whole_bytes"] == 4 * sum(sizes)
        assert counts["kept_bytes"] == 4 * sum(part_length((size,), n_replicas) for size in sizes)


STEPS = {
    "clipped by a norm": (core_steps.clipped, "wmx", {}),
    "read after its update": (core_steps.read_after, "wmx", {}),
    "one row": (core_steps.rows, "wmx", {}),
    "other shapes": (core_steps.by_shapes, "wmx", {"shape": (3, 5)}),
    "scalars": (core_steps.momentum, "wmx", {"shape": ()}),
    "fewer values than replicas": (core_steps.momentum, "wmx", {"shape": (2,)}),
    "whole numbers": (core_steps.whole_numbers, "wmx", {"dtype": "int32"}),
    "one for all replicas": (core_steps.shared, "wmx", {"w": {"shared": True}}),
    "one scalar for all replicas": (core_steps.shared, "wmx", {"shape": (), "w": {"shared": True}}),
    "loop variables": (core_steps.momentum, "wmx", {"w": {"way": "iterated", "n_identities": 2}}),
}


@pytest.mark.parametrize("name", STEPS)
def test_whatever_a_program_does_with_its_variables(name):
    step, names, options = STEPS[name]
    whole, parted = outcomes(step, names, 4, **options)
    assert parted.error(whole) <= FOUR_ROUNDINGS
    assert_counts(parted, n_iterations=3)


def test_replicas_have_whole_copies_of_their_own():
    """One that is done with a variable would take it from another, by chance."""
    loop = loop_of("wmx", 2, shape=(), w={"shared": True})
    graph = reshard_host_loops(built(loop, core_steps.shared, "float32")).graph
    for replica, function in enumerate(programs(lower_computations(graph, members(2)))):
        weight, slot, seen = (arg.name for arg in function.inputs)
        takers = {node.op for node in function.nodes for ref in node.data_inputs if ref in (weight, slot)}
        assert not takers
        assert any(seen in node.data_inputs for node in function.nodes)
        names = {node.attrs["shared_name"] for node in function.nodes if node.op == "VarHandleOp"}
        assert all(name.startswith(b"stratbench/part/loop/compile/") for name in names)
        assert all(f"/{replica}" in name.decode() for name in names)


def programs(graph: Graph) -> list[Function]:
    """The programs of all replicas, by rank."""
    names = sorted(name for name in graph.functions if "__replica_" in name)
    return [graph.functions[name] for name in names]


@pytest.mark.parametrize("step", [core_steps.rows, core_steps.shared])
def test_more_replicas_than_an_all_to_all_takes(step):
    variables = {"w": {"shared": True}} if step is core_steps.shared else {}
    whole, parted = outcomes(step, "wmx", 12, **variables)
    assert parted.error(whole) <= FOUR_ROUNDINGS


@pytest.mark.parametrize(("shape", "k"), [((7,), 0), ((0,), 3)])
def test_there_is_nothing_to_do(shape, k):
    whole, parted = outcomes(core_steps.momentum, "wmx", 4, shape=shape, k=k)
    assert parted.error(whole) == 0
    assert_counts(parted, n_iterations=0)


def in_outer_loop(loop: HostLoopGraph) -> Graph:
    return Graph(nodes=(*loop.handles().values(), *nested(loop)), functions={})


@pytest.mark.parametrize("k", [0, 3])
@pytest.mark.parametrize(
    ("build", "label", "fetches", "times"),
    [
        (called_loop, "train/loop/compile", ["step"], 1),
        (in_outer_loop, COMPILE, ["outer/count"], 2),
    ],
)
def test_loops_in_functions_and_in_loops(build, label, fetches, times, k):
    loop = loop_of("wmx", 2, k=k)
    graph = built(loop, core_steps.momentum, "float32", build)
    whole, parted = both(graph, first_values(loop), n_replicas=2, labels=[label], fetches=fetches)
    assert parted.error(whole) <= FOUR_ROUNDINGS
    assert_counts(parted, n_iterations=k, n_runs=2 * times, label=label)


def test_two_functions_have_computations_of_one_name():
    loops = [loop_of("wmx", 2), loop_of("ubx", 2)]
    graphs = [called_loop(loop) for loop in loops]
    steps = [core_steps.momentum, core_steps.read_after]
    nodes, functions, values = [], {}, {}
    for name, loop, graph, step in zip(("a", "b"), loops, graphs, steps, strict=True):
        nodes += [node for node in graph.nodes if node.op == "VarHandleOp" and node.name not in values]
        values |= first_values(loop)
        caller = graph.by_name["step"]
        waits = ("^a",) if name == "b" else ()
        nodes.append(call(name, name, dict.fromkeys(caller.data_inputs, RESOURCE), (INT32, FLOAT)))
        nodes[-1] = nodes[-1].changed(inputs=(*nodes[-1].inputs, *waits))
        program = core_program(step, 3, name=f"{name}_step", n=2, shape=(7,), dtype="float32")
        train = graph.functions["train"]
        ref = next(node for node in train.nodes if node.op == "TPUCompile")
        named = ref.changed(attrs={**ref.attrs, "function": type(ref.attrs["function"])(program.name)})
        body = tuple(named if node is ref else node for node in train.nodes)
        functions |= {program.name: program, name: replace(train, name=name, nodes=body)}
    graph = Graph(nodes=tuple(nodes), functions=functions)
    labels = ["a/loop/compile", "b/loop/compile"]
    whole, parted = both(graph, values, n_replicas=2, labels=labels, fetches=["a", "b"])
    assert parted.error(whole) <= FOUR_ROUNDINGS
    for label in labels:
        assert_counts(parted, n_iterations=3, label=label)


@pytest.mark.parametrize("is_awaited", [True, False])
def test_a_function_writes_a_variable(is_awaited):
    """TensorFlow runs what writes a variable whether a result or control output needs it or not."""
    loop = loop_of("wx", 4)
    program = core_program(core_steps.halved, 2, name="halves", shape=(7,))
    arguments = {arg.name: RESOURCE for arg in program.inputs}
    called = call("call", "halves", arguments, (FLOAT,))
    loss = Node(name="loss", op="Identity", inputs=("call",), attrs={"T": FLOAT})
    step = in_function([called, loss], arguments, {"loss": ("loss", FLOAT)}, "step")
    if is_awaited:
        step = replace(step, control_outputs=("call",), control_results={"call": "call"})
    graph = graph_of(loop)
    graph = replace(graph, functions={**graph.functions, "step": step, "halves": program})
    values = first_values(loop)
    whole, parted = both(graph, values, n_replicas=4, labels=[COMPILE])
    assert parted.error(whole) <= FOUR_ROUNDINGS
    np.testing.assert_allclose(parted.variables[1]["w_3"], values["w_3"] / 2**6, rtol=1e-6)
    assert_counts(parted, n_iterations=3)


def test_members_are_as_many_as_replicas():
    graph = CHANGED["simple"]()
    with pytest.raises(GraphError, match="needs a member for each of 2 replicas, got a group of 4"):
        lower_computations(graph, members(4))
