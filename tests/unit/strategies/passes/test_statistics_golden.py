"""What statistics of the whole batch make of a step that normalises its examples, as text."""

import pytest

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow")

from dataclasses import replace

from golden_steps import FLOAT, check_pass, node, tiny

from strategies.ir.graph import Shape
from strategies.ir.train_graph import Statistic, TrainGraph
from strategies.passes.pass_order import passes_of
from strategies.planning.plan import topology_of
from strategies.planning.registry import make_plan
from strategies.summary import summarise
from strategies.topology import Topology

CHANNELS = Shape((1, 3))
# What each identity passes on, and how many of them it needs.
MARKS = {
    "mean": ("mean/local", 1),
    "variance": ("variance/local", 2),
    "mean/gradient": ("mean/upstream", 3),
    "variance/gradient": ("variance/upstream", 3),
}


def normalising() -> TrainGraph:
    """The step of `golden_steps` with x - mean(x) over the root of its variance in the place of x."""
    step = tiny()
    made = {
        "mean/local": node("mean/local", "Mean", "x"),
        "mean": node("mean", "Identity", "mean/local", T=FLOAT),
        "variance/local": node("variance/local", "Variance", "x", "mean"),
        "variance": node("variance", "Identity", "variance/local", T=FLOAT),
        "mean/upstream": node("mean/upstream", "Upstream", "mean", "variance"),
        "mean/gradient": node("mean/gradient", "Identity", "mean/upstream", T=FLOAT),
        "variance/upstream": node("variance/upstream", "Upstream", "mean", "variance"),
        "variance/gradient": node("variance/gradient", "Identity", "variance/upstream", T=FLOAT),
    }
    backward = replace(step.graph.by_name["backward"], inputs=("x", "mean/gradient", "variance/gradient"))
    loss = replace(step.graph.by_name["loss"], inputs=("x", "first", "second", "mean", "variance"))
    rest = {n.name: n for n in step.graph.nodes} | {"backward": backward, "loss": loss}
    return replace(
        step,
        graph=step.graph.with_nodes([*rest.values(), *made.values()]),
        statistics=tuple(
            Statistic(layer="norm", node=name, dtype=FLOAT, shape=CHANNELS, level=level)
            for name, (_, level) in MARKS.items()
        ),
    )


@pytest.mark.parametrize(
    ("strategy", "task", "name"), [("all-reduce", 0, "sync-statistics"), ("ps", 1, "collectives-apart")]
)
def test_golden(strategy, task, name):
    step = normalising()
    summary = summarise(step, "tiny", {})
    assert [(s.layer, s.bytes) for s in summary.statistics] == [("norm", 4 * 3 * 4)]
    shape = Topology(replicas_per_task=(2, 1), batch_size=4)
    plan = make_plan(strategy, {"sync_batch_norm": True}, summary, shape)
    check_pass(step, plan, task, name, f"{name}-{strategy}-statistics-task-{task}.txt")


def test_in_a_lone_worker_no_collective_is_needed():
    step = normalising()
    shape = Topology(replicas_per_task=(2,), batch_size=4)
    plan = make_plan("ps", {"sync_batch_norm": True}, summarise(step, "tiny", {}), shape)
    for each in passes_of(plan, 0):
        step = each.apply(step, topology_of(plan))
    assert not [n.op for n in step.graph.nodes if n.op.startswith("Collective")]
    sums = {step.graph.by_name[f"replica_{rank}/mean"].inputs for rank in range(2)}
    assert len(sums) == 1
