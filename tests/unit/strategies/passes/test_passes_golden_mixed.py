"""Passes, applied to a step with one of two variables on a server, as text; see golden_steps."""

from dataclasses import replace

import pytest

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow")

from golden_steps import check_pass, text_of, tiny
from golden_texts import check_text
from graph_text import from_text

from strategies.errors import StrategyError
from strategies.ir.replica_updates import own_updates
from strategies.ir.train_graph import Boundary, TrainGraph, UpdateRegion
from strategies.ir.variable import Variable
from strategies.passes.pass_order import passes_of
from strategies.passes.replicate.step_copies import Owners
from strategies.planner import topology_of
from strategies.registry import make_plan
from strategies.summary import summarise
from strategies.topology import Topology

NODES = """
w = VarHandleOp() {container='', dtype=float, shape=<>, shared_name='w'}
w/initial = Placeholder() {dtype=float, shape=<>}
w/load = AssignVariableOp(w, w/initial) {dtype=float}
w/read = ReadVariableOp(w) {dtype=float}
v = VarHandleOp() {container='', dtype=float, shape=<>, shared_name='v'}
v/initial = Placeholder() {dtype=float, shape=<>}
v/load = AssignVariableOp(v, v/initial) {dtype=float}
v/read = ReadVariableOp(v) {dtype=float}
x = Placeholder() {dtype=float, shape=<?>}
first = ReadVariableOp(w) {dtype=float}
second = ReadVariableOp(v) {dtype=float}
loss = Loss(x, first, second)
backward = Gradient(x)
gradient = Identity(backward) {T=float}
v_gradient = Identity(backward) {T=float}
norm = L2Loss(gradient) {T=float}
v_norm = L2Loss(v_gradient) {T=float}
factor = Add(norm, v_norm) {T=float}
scaled = Mul(gradient, factor) {T=float}
v_scaled = Mul(v_gradient, factor) {T=float}
update = AssignSubVariableOp(w, scaled, ^first) {dtype=float}
v_update = AssignSubVariableOp(v, v_scaled, ^second) {dtype=float}
"""


def two() -> TrainGraph:
    """The tiny step with a second variable v; each update takes its gradient times the sum of both norms."""
    step = tiny()
    w = step.variables[0]
    other = Variable(
        name="v",
        kind=w.kind,
        group=w.group,
        dtype=w.dtype,
        shape=w.shape,
        handle="v",
        placeholder="v/initial",
        load="v/load",
        read="v/read",
    )
    boundary = step.boundaries[0]
    return replace(
        step,
        graph=from_text(NODES),
        variables=(w, other),
        boundaries=(
            boundary,
            Boundary(
                variable="v",
                role=boundary.role,
                rule=boundary.rule,
                dtype=boundary.dtype,
                shape=boundary.shape,
                values="v_gradient",
            ),
        ),
        regions=(
            UpdateRegion(variable="w", nodes=("scaled", "update"), targets=("update",)),
            UpdateRegion(variable="v", nodes=("v_scaled", "v_update"), targets=("v_update",)),
        ),
        shared_update=("norm", "v_norm", "factor"),
        readiness={"w": 0, "v": 1},
    )


def mixed(step):
    """The plan of all-reduce with v on the server of task 0."""
    topology = Topology(replicas_per_task=(2, 1), batch_size=3)
    params = {"transport": "ring", "fused_update": False}
    plan = make_plan("all-reduce", params, summarise(step, "tiny", {}), topology)
    nodes = (
        n.model_copy(update={"synchronizer": "ps", "destination": 0, "group": None, "transport": None})
        if n.variable == "v"
        else n
        for n in plan.nodes
    )
    return plan.model_copy(update={"nodes": tuple(nodes)})


@pytest.mark.parametrize(
    ("task", "name"),
    [
        (0, "replicate"),
        (1, "separate-collectives"),
        (0, "broadcast-update-values"),
        (1, "broadcast-update-values"),
        (0, "placement"),
    ],
)
def test_golden(task, name):
    step = two()
    plan = mixed(step)
    for rewrite in passes_of(plan, task):
        step = rewrite.apply(step, topology_of(plan))
        if rewrite.name == name:
            break
    beside = f"# beside steps {', '.join(step.background)}\n"
    check_text(text_of(step) + beside, f"{name}-mixed-task-{task}.txt")


@pytest.mark.parametrize("name", ["pack-pushes", "pack-pulls"])
def test_golden_of_what_travels_together(name):
    step = two()
    plan = make_plan("ps", {}, summarise(step, "tiny", {}), Topology(replicas_per_task=(1, 2), batch_size=3))
    check_pass(step, plan, 1, name, f"{name}-ps-task-1.txt")


def test_only_what_depends_on_a_shared_variable_alone_exists_once():
    step = two()
    owners = Owners.of(step, shared={"v"}, micro_batches=1)
    assert set(step.graph.by_name) - owners.copied() == {
        *("x", "v", "v/initial", "v/load", "v/read"),
        *("v_gradient", "v_norm", "v_scaled", "v_update"),
    }
    in_turn = Owners.of(step, shared={"v"}, micro_batches=2)
    assert in_turn.copied() == owners.copied()
    assert in_turn.per_shard == {"loss", "backward"}


def test_one_node_cannot_update_both_kinds():
    step = two()
    nodes = (
        replace(n, inputs=("w", "v", *n.inputs[1:])) if n.name == "update" else n for n in step.graph.nodes
    )
    step = replace(step, graph=step.graph.with_nodes(nodes))
    message = "'w' and 'v': AssignSubVariableOp 'update' updates them together, so both must be on servers"
    with pytest.raises(StrategyError, match=message):
        own_updates(step, {"v"})
    assert own_updates(step, {"v", "w"}) == set()
