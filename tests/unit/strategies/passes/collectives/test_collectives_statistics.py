"""Statistics of the whole batch in a step that normalises its examples, as text."""

import pytest

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow")

from dataclasses import replace

from golden_steps import FLOAT, check_pass, tiny
from graph_text import from_text

from strategies.ir.graph import Shape
from strategies.ir.train_graph import Statistic, TrainGraph
from strategies.passes.pass_order import passes_of
from strategies.planner import topology_of
from strategies.registry import make_plan
from strategies.summary import summarise
from strategies.topology import Topology

CHANNELS = Shape((1, 3))
LEVELS = {"mean": 1, "variance": 2, "mean/gradient": 3, "variance/gradient": 3}
"""Each statistic of the layer, and how many of them it needs."""
NODES = """
w = VarHandleOp() {container='', dtype=float, shape=<>, shared_name='w'}
w/initial = Placeholder() {dtype=float, shape=<>}
w/load = AssignVariableOp(w, w/initial) {dtype=float}
w/read = ReadVariableOp(w) {dtype=float}
x = Placeholder() {dtype=float, shape=<?>}
first = ReadVariableOp(w) {dtype=float}
second = ReadVariableOp(w) {dtype=float}
loss = Loss(x, first, second, mean, variance)
backward = Gradient(x, mean/gradient, variance/gradient)
gradient = Identity(backward) {T=float}
update = AssignSubVariableOp(w, gradient, ^first, ^second) {dtype=float}
mean/local = Mean(x)
mean = Identity(mean/local) {T=float}
variance/local = Variance(x, mean)
variance = Identity(variance/local) {T=float}
mean/upstream = Upstream(mean, variance)
mean/gradient = Identity(mean/upstream) {T=float}
variance/upstream = Upstream(mean, variance)
variance/gradient = Identity(variance/upstream) {T=float}
"""


def normalising() -> TrainGraph:
    """The step of `golden_steps` with x - mean(x) over the root of its variance in the place of x."""
    return replace(
        tiny(),
        graph=from_text(NODES),
        statistics=tuple(
            Statistic(layer="norm", node=name, dtype=FLOAT, shape=CHANNELS, level=level)
            for name, level in LEVELS.items()
        ),
    )


@pytest.mark.parametrize(
    ("strategy", "task", "name"), [("all-reduce", 0, "sync-statistics"), ("ps", 1, "separate-collectives")]
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
    for rewrite in passes_of(plan, 0):
        step = rewrite.apply(step, topology_of(plan))
    assert not [n.op for n in step.graph.nodes if n.op.startswith("Collective")]
    sums = {step.graph.by_name[f"replica_{rank}/mean"].inputs for rank in range(2)}
    assert len(sums) == 1
