"""Cost of carrying out a plan: seconds, and their growth with captured nodes and local replicas.

Seconds are the sum of the passes of one worker, without capture, verification, conversion or import. How they
grow is told from processor seconds, which other programs disturb less, divided by the nodes of the graph that
is made. Every round runs the whole grid; the figure of a cell is its median.
"""

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from functools import cache

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from synthetic_step import synthetic_step

from strategies.ir.graph_rules import verify
from strategies.ir.train_graph import TrainGraph
from strategies.ir.traversal import prune
from strategies.passes.pass_order import passes_of
from strategies.passes.run import Transformed, run_passes
from strategies.plan.partitions import parts_of
from strategies.plan.schema import Plan
from strategies.planner import topology_of
from strategies.registry import STRATEGIES, make_plan
from strategies.summary import summarise
from strategies.topology import Topology

pytestmark = pytest.mark.tensorflow

# One of each way to rewrite a step; with `--all-cases` every strategy that does.
CHOSEN = ("none", "ps", "ps-load-balancing", "all-reduce", "partitioned-ps")
EVERY = tuple(s.name for s in STRATEGIES if s.runner == "graph" and not s.single)
BATCH_SIZE = 64
LARGEST = (20_000, 8)
Cell = tuple[int, int]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.function is test_transform:
        every = metafunc.config.getoption("--all-cases")
        metafunc.parametrize("strategy", EVERY if every else CHOSEN)


@cache
def captured(n_nodes: int) -> TrainGraph:
    return synthetic_step(n_nodes)


@cache
def plan_of(strategy: str, n_nodes: int, n_replicas: int, n_workers: int) -> Plan:
    topology = Topology(replicas_per_task=(n_replicas,) * n_workers, batch_size=BATCH_SIZE)
    return make_plan(strategy, {}, summarise(captured(n_nodes), "synthetic", {}), topology)


def transformed(
    strategy: str, n_nodes: int, n_replicas: int, n_workers: int, *, check: bool = False
) -> Transformed:
    plan = plan_of(strategy, n_nodes, n_replicas, n_workers)
    return run_passes(passes_of(plan, task=0), captured(n_nodes), topology_of(plan), check=check)


def in_parts(step: TrainGraph, plan: Plan) -> tuple[int, int]:
    """Variables and boundaries of a step whose parts are counted each."""
    n_parts = {n.variable: len(parts_of(n)) for n in plan.nodes}
    return sum(n_parts[v.name] for v in step.variables), sum(n_parts[b.variable] for b in step.boundaries)


@pytest.mark.parametrize("n_workers", [1, 2])
@pytest.mark.parametrize("strategy", CHOSEN)
def test_nodes_grow_by_the_same_number_for_each_replica(strategy: str, n_workers: int) -> None:
    n_nodes = 400
    step = captured(n_nodes)
    verify(step.graph)
    sizes = {}
    for n_replicas in (2, 4, 8):
        transformation = transformed(strategy, n_nodes, n_replicas, n_workers, check=True)
        sizes[n_replicas] = len(transformation.step.graph.nodes)
        shared = any(node.synchronizer == "ps" for node in plan_of(strategy, n_nodes, 2, n_workers).nodes)
        n_copies = 1 if shared else n_replicas
        assert len(transformation.step.losses) == n_replicas
        n_variables, n_boundaries = in_parts(step, plan_of(strategy, n_nodes, n_replicas, n_workers))
        assert len(transformation.step.variables) == n_copies * n_variables
        assert len(transformation.step.boundaries) == n_copies * n_boundaries
        assert transformation.timings[-1].nodes == sizes[n_replicas]
    assert sizes[8] - sizes[4] == 2 * (sizes[4] - sizes[2])
    assert sizes[8] - sizes[4] > 4 * n_nodes // 3


@pytest.mark.parametrize("n_workers", [1, 2])
def test_transform(
    strategy: str,
    n_workers: int,
    benchmark: BenchmarkFixture,
    capsys: pytest.CaptureFixture[str],
    all_cases: bool,
) -> None:
    grid = grid_of(n_workers, all_cases=all_cases, timed=benchmark.enabled)
    largest = max(grid)
    seconds: dict[Cell, list[float]] = {cell: [] for cell in grid}
    processor_s: dict[Cell, list[float]] = {cell: [] for cell in grid}
    made_nodes: dict[Cell, int] = {}
    for n, r in grid:
        plan_of(strategy, n, r, n_workers)

    def one_round() -> None:
        for cell in grid:
            started_s = time.thread_time()
            transformation = transformed(strategy, *cell, n_workers)
            processor_s[cell].append(time.thread_time() - started_s)
            seconds[cell].append(transformation.seconds)
            made_nodes[cell] = len(transformation.step.graph.nodes)

    benchmark.pedantic(one_round, rounds=5 if all_cases else 3)
    for n, r in grid:
        assert made_nodes[n, r] == pytest.approx(made_nodes[largest[0], r] * n / largest[0], rel=0.05)
    median_s = {cell: statistics.median(times) for cell, times in seconds.items()}
    us_per_node = {cell: statistics.median(processor_s[cell]) / made_nodes[cell] * 1e6 for cell in grid}
    middle = (max(us_per_node.values()) + min(us_per_node.values())) / 2
    spread = max(us_per_node.values()) / middle - 1
    benchmark.extra_info.update(
        workers=n_workers,
        spread=spread,
        cells=[
            {
                "nodes": n,
                "replicas": r,
                "nodes_after": made_nodes[n, r],
                "seconds": median_s[n, r],
                "us_per_node": us,
            }
            for (n, r), us in us_per_node.items()
        ],
    )
    text = ", ".join(f"{n}x{r} {us:.1f}" for (n, r), us in us_per_node.items())
    say(
        capsys,
        f"transform {strategy} W={n_workers}: {median_s[largest]:.2f} s for {largest[0]:,} nodes x "
        f"{largest[1]} replicas = {made_nodes[largest]} nodes; us per node made: {text} (+-{spread:.0%})",
    )


@pytest.mark.parametrize("strategy", ["ps-load-balancing", "all-reduce"])
def test_conversion(
    strategy: str, benchmark: BenchmarkFixture, capsys: pytest.CaptureFixture[str], all_cases: bool
) -> None:
    """From the last pass to a graph that TensorFlow has imported, with two workers of eight replicas."""
    import tensorflow as tf

    from strategies.program import Program
    from strategies.tf_bridge.graphdef import serialize_graph
    from strategies.tf_bridge.program import build_program

    n_nodes = 20_000 if all_cases else 1_000
    step = transformed(strategy, n_nodes, 8, 2).step
    topology = topology_of(plan_of(strategy, n_nodes, 8, 2))
    pruned = prune(step.graph, step.roots())

    def program() -> Program:
        return build_program(step, topology, 0, nodes_before=len(captured(n_nodes).graph.nodes))

    def imported() -> tf.Graph:
        with tf.Graph().as_default() as graph:
            tf.graph_util.import_graph_def(tf.compat.v1.GraphDef.FromString(built.graph_def), name="")
        return graph

    built = benchmark.pedantic(program, rounds=2)
    graph = imported()
    assert built.nodes_after == len(pruned.nodes) == len(graph.get_operations())
    parts = {
        "graphdef": seconds_of(lambda: serialize_graph(pruned)),
        "program": seconds_of(program),
        "import": seconds_of(imported),
    }
    benchmark.extra_info.update(nodes=built.nodes_after, bytes=len(built.graph_def), **parts)
    say(capsys, f"conversion {strategy} of {built.nodes_after} nodes: {written(parts)}")


def test_capture_to_program(benchmark: BenchmarkFixture, capsys: pytest.CaptureFixture[str]) -> None:
    """All that a worker does for digits-cnn before TensorFlow sees its graph."""
    import keras

    from strategies.capture.capture import capture
    from strategies.tf_bridge.program import build_program
    from workloads import registry

    workload = registry.resolve("digits-cnn", {})
    parts: dict[str, float] = {}

    def whole() -> int:
        keras.backend.clear_session()
        train_step, spec = workload.train_step(), workload.dataset(0).element_spec
        started_s = time.perf_counter()
        step = capture(train_step, spec).step
        captured_s = time.perf_counter()
        plan = make_plan(
            "all-reduce",
            {},
            summarise(step, "digits-cnn", {}),
            Topology(replicas_per_task=(2, 2), batch_size=BATCH_SIZE),
        )
        rewritten = run_passes(passes_of(plan, task=0), step, topology_of(plan), check=False)
        transformed_s = time.perf_counter()
        built = build_program(rewritten.step, topology_of(plan), 0, nodes_before=len(step.graph.nodes))
        ended_s = time.perf_counter()
        parts.update(
            capture=captured_s - started_s,
            plan_and_passes=transformed_s - captured_s,
            program=ended_s - transformed_s,
        )
        assert built.nodes_after > built.nodes_before
        return built.nodes_after

    n_nodes = benchmark.pedantic(whole, rounds=1, warmup_rounds=1)
    benchmark.extra_info.update(nodes=n_nodes, **parts)
    say(capsys, f"digits-cnn to a program of {n_nodes} nodes: {written(parts)}")


def grid_of(n_workers: int, *, all_cases: bool, timed: bool) -> list[Cell]:
    """Captured nodes and local replicas: by default few, and only the largest for the times of one worker.

    Without times, small ones show how the nodes grow.
    """
    if all_cases:
        return [(n, r) for n in (2_000, 6_000, 20_000) for r in (2, 4, 8)]
    if not timed:
        return [(n, 2 if n_workers == 1 else 8) for n in (2_000, 6_000)]
    return [LARGEST] if n_workers == 1 else [(n, r) for n in (2_000, 20_000) for r in (2, 8)]


def seconds_of(work: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    work()
    return time.perf_counter() - started_s


def written(parts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {seconds:.3f} s" for name, seconds in parts.items())


def say(capsys: pytest.CaptureFixture[str], line: str) -> None:
    with capsys.disabled():
        sys.stdout.write(f"\n{line}\n")
