"""Cost of resharding around host loops in a graph of 20,000 nodes: one loop, many loops, or none."""

import sys
import time
from collections.abc import Callable

import pytest
from host_loop_graphs import HostLoopGraph, LoopVariable, graph_of
from pytest_benchmark.fixture import BenchmarkFixture
from synthetic_step import synthetic_step

from strategies.ir.graph import Graph, Node
from strategies.passes.tpu.host_loop_reshard import reshard_host_loops

N_NODES = 20_000


def one_loop() -> Graph:
    """A loop whose executes take many variables of eight replicas."""
    variables = [LoopVariable(name=f"v{k}", way="iterated" if k % 2 else "constant") for k in range(615)]
    return graph_of(HostLoopGraph(variables=variables, n_replicas=8))


def many_loops() -> Graph:
    """Two hundred loops, each with variables of its own."""
    return graph_of(
        *(
            HostLoopGraph(
                variables=[LoopVariable(name=f"v{k}_{i}", n_identities=2) for i in range(5)],
                name=f"loop{k}",
                n_replicas=4,
            )
            for k in range(200)
        )
    )


def beside_others() -> Graph:
    """One small loop among many other nodes."""
    loop = graph_of(HostLoopGraph(variables=[LoopVariable(name="w"), LoopVariable(name="m")]))
    others = [_renamed(node) for node in synthetic_step(N_NODES - len(loop.nodes)).graph.nodes]
    return Graph(nodes=(*loop.nodes, *others), functions=loop.functions)


def _renamed(node: Node) -> Node:
    inputs = tuple(f"^o/{ref[1:]}" if ref[0] == "^" else f"o/{ref}" for ref in node.inputs)
    return node.changed(name=f"o/{node.name}", inputs=inputs)


@pytest.mark.parametrize("make", [one_loop, many_loops, beside_others])
def test_resharding(
    make: Callable[[], Graph], benchmark: BenchmarkFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = make().nodes
    functions = make().functions
    processor_s: list[float] = []

    def resharded() -> int:
        # What a graph derives of itself is kept with it; a pass gets one that has derived nothing.
        graph = Graph(nodes=nodes, functions=functions)
        started_s = time.process_time()
        resharding = reshard_host_loops(graph)
        processor_s.append(time.process_time() - started_s)
        assert not resharding.left
        return len(resharding.graph.nodes)

    n_made = benchmark.pedantic(resharded, rounds=5)
    assert n_made > len(nodes)
    benchmark.extra_info.update(nodes=len(nodes), nodes_after=n_made, processor_s=min(processor_s))
    say(capsys, f"host-loop-reshard {make.__name__}: {min(processor_s):.2f} s for {len(nodes)} nodes")


def say(capsys: pytest.CaptureFixture[str], line: str) -> None:
    with capsys.disabled():
        sys.stdout.write(f"\n{line}\n")
