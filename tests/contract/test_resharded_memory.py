"""Memory of a replica while a resharded loop runs, measured from inside its iterations."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

import core_steps
from emulated_loops import core_program, device, first_values, run
from host_loop_graphs import INT32, HostLoopGraph, LoopVariable, graph_of, handle

from strategies.ir.graph import DType, Function, Graph, Node
from strategies.numerics.resharding import part_length
from strategies.passes.tpu.computations import Sharding
from strategies.passes.tpu.host_loop_reshard import reshard_host_loops

BOOL = DType("bool")


class Calls:
    """Nodes that call Python."""

    def __init__(self) -> None:
        self._graph = tf.Graph()

    def node(
        self, name: str, look: Callable[..., None], inputs: Sequence[str], types: Sequence[DType]
    ) -> Node:
        """A node that calls a function with what it takes as data."""
        with self._graph.as_default():
            tf.numpy_function(look, [tf.compat.v1.placeholder(tf.as_dtype(dtype)) for dtype in types], [])
        get_operation = self._graph.get_operations()[-1]
        attrs = {"Tin": tuple(types), "Tout": (), "token": get_operation.get_attr("token")}
        return Node(name=name, op=get_operation.type, inputs=tuple(inputs), attrs=attrs, device=device(0))


def loop_of(names: str, n_replicas: int, n_values: int, step: Function) -> tuple[HostLoopGraph, Graph]:
    variables = [
        LoopVariable(
            name=name,
            shape=(n_values,),
            sharding=Sharding.DISALLOWED if name == "x" else Sharding.TENTATIVE,
        )
        for name in names
    ]
    devices = [device(r) for r in range(n_replicas)]
    loop = HostLoopGraph(variables=variables, n_replicas=n_replicas, devices=devices)
    return loop, graph_of(loop, functions={"step": step})


def executed(loop: HostLoopGraph) -> tuple[str, ...]:
    """Nodes that wait for all executes of an iteration."""
    return tuple(f"^loop/execute_{r}" for r in range(loop.n_replicas))


def before_next(graph: Graph, *nodes: Node) -> Graph:
    """A graph with more nodes in its loop, for the last of which the next iteration waits."""
    following = graph.by_name["loop/count/next"]
    waiting = following.changed(inputs=(*following.inputs, f"^{nodes[-1].name}"))
    return graph.with_nodes((*(waiting if n is following else n for n in graph.nodes), *nodes))


def whole_ones(loop: HostLoopGraph, names: str) -> Iterator[Node]:
    """Nodes that tell of each replica's variable whether it is there whole."""
    for name in names:
        for r in range(loop.n_replicas):
            inputs = (f"loop/{name}_{r}/enter", *executed(loop))
            yield Node(name=f"look/{name}_{r}", op="VarIsInitializedOp", inputs=inputs, device=device(r))


def parts(loop: HostLoopGraph, names: str) -> Iterator[Node]:
    """Nodes that give the shape of each replica's part of a variable."""
    positions = {v.name: position for position, v in enumerate(loop.variables)}
    for name in names:
        for r in range(loop.n_replicas):
            shared_name = f"stratbench/part/loop/compile/{positions[name]}/{r}"
            part = handle(f"look/{name}_{r}/part", (-1,), device(r), shared_name=shared_name)
            yield part.changed(inputs=executed(loop))
            shape = f"{part.name}/shape"
            inputs, attrs = (part.name, *executed(loop)), {"out_type": INT32}
            yield Node(name=shape, op="VariableShape", inputs=inputs, attrs=attrs, device=device(r))


@pytest.mark.parametrize("n_replicas", [2, 4])
def test_variables_are_there_in_parts_alone(n_replicas):
    step = core_program(core_steps.adam_by_assignments, 4, n=n_replicas, shape=(7,), dtype="float32")
    loop, graph = loop_of("wmvx", n_replicas, 7, step)
    calls = Calls()
    seen: list[list[object]] = []

    def looked_at(graph: Graph, *, in_parts: bool) -> Graph:
        nodes = [*whole_ones(loop, "wmv"), *(parts(loop, "wmv") if in_parts else ())]
        inputs = [node.name for node in nodes if node.op != "VarHandleOp"]
        types = [BOOL if node.op == "VarIsInitializedOp" else INT32 for node in nodes if node.name in inputs]
        look = calls.node("look", lambda *v: seen.append([value.tolist() for value in v]), inputs, types)
        return before_next(graph, *nodes, look)

    n_each = 3 * n_replicas
    run(graph, first_values(loop), n_replicas=n_replicas, probe=lambda g: looked_at(g, in_parts=False))
    # Two runs of three iterations.
    assert seen == 6 * [[True] * n_each]
    seen.clear()
    resharded = reshard_host_loops(graph).graph
    run(resharded, first_values(loop), n_replicas=n_replicas, probe=lambda g: looked_at(g, in_parts=True))
    assert seen == 6 * [[False] * n_each + [[part_length((7,), n_replicas)]] * n_each]


def held_bytes() -> int:
    """Memory that tensors on CPUs take, by TensorFlow's allocator."""
    return int(tf.config.experimental.get_memory_info("CPU:0")["current"])


def shares_held(n_replicas: int) -> tuple[list[float], list[float]]:
    """Share of all variables that is held in each iteration and after the last, in parts and whole."""
    # A size that the allocator gives out as it is.
    n_values = 1 << 22
    step = core_program(core_steps.grown, 1, shape=(n_values,))
    loop, graph = loop_of("m", n_replicas, n_values, step)
    calls = Calls()
    sizes: list[int] = []
    before = held_bytes()

    def looked_at(graph: Graph) -> Graph:
        def look() -> None:
            sizes.append(held_bytes() - before)

        inside = before_next(graph, calls.node("look", look, executed(loop), ()))
        last = calls.node("look_last", look, ("^loop/count", "^loop/total"), ())
        count = Node(name="ended", op="Identity", inputs=("loop/count", "^look_last"), attrs={"T": INT32})
        return inside.with_nodes((*inside.nodes, last, count))

    def shares(graph: Graph) -> list[float]:
        sizes.clear()
        values = {f"m_{r}": np.ones(n_values, np.float32) for r in range(n_replicas)}
        run(graph, values, n_replicas=n_replicas, probe=looked_at, fetches=["ended"])
        return [n / (4 * n_values * n_replicas) for n in sizes]

    return shares(reshard_host_loops(graph).graph), shares(graph)


IN_A_NEW_PROCESS = """
import json, sys
sys.path[:0] = sys.argv[2:]
from test_resharded_memory import shares_held

print(json.dumps(shares_held(int(sys.argv[1]))))
"""


@pytest.mark.parametrize("n_replicas", [2, 4])
def test_a_slot_takes_its_share_of_memory(n_replicas, record_property):
    """Count allocations: a part that lay in the memory of the whole variable would keep all of it.

    In a process of its own: what others have left is given out again in pieces that are too large.
    """
    arguments = [str(n_replicas), *(path for path in sys.path if path)]
    command = [sys.executable, "-c", IN_A_NEW_PROCESS, *arguments]
    process = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert process.returncode == 0, process.stderr
    in_parts, whole = json.loads(process.stdout.splitlines()[-1])
    record_property("shares", in_parts)
    assert in_parts == pytest.approx(2 * [*3 * [1 / n_replicas], 1], abs=0.02)
    assert whole == pytest.approx(2 * [1, 1, 1, 1], abs=0.02)
