"""Updates that become a kernel, and the order of the nodes around them, as text."""

from dataclasses import replace

import pytest

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow")

from golden_steps import FLOAT
from graph_text import from_text
from task_plans import task_plan

from strategies.ir.graph import Shape
from strategies.ir.graph_rules import verify
from strategies.ir.text import to_text
from strategies.ir.train_graph import BatchInput, Boundary, Loss, TrainGraph, UpdateRegion
from strategies.ir.variable import Variable
from strategies.passes.update.fuse import FuseUpdates
from strategies.topology import Topology

ONE = Topology(replicas_per_task=(1,), batch_size=4)
HEAD = """
{name} = VarHandleOp() {{container='', dtype=float, shape=<{shape}>, shared_name='{name}'}}
{name}/initial = Placeholder() {{dtype=float, shape=<{shape}>}}
{name}/load = AssignVariableOp({name}, {name}/initial) {{dtype=float}}
{name}/read = ReadVariableOp({name}) {{dtype=float}}"""
FORWARD = """
x = Placeholder() {dtype=float, shape=<?>}
loss = Loss(x)
backward = Gradient(x)
gradient = Identity(backward) {T=float}
rate = Const() {dtype=float, value=float<> [0.5]}
factor = Const() {dtype=float, value=float<> [0.9]}"""
MOMENTUM = """
old = ReadVariableOp(m) {dtype=float}
kept = Mul(old, factor) {T=float}
moved = Mul(rate, gradient) {T=float}
next = Sub(kept, moved) {T=float}
slot = AssignVariableOp(m, next, ^old) {dtype=float}
new = ReadVariableOp(m, ^slot) {dtype=float}
update = AssignAddVariableOp(w, new) {dtype=float}"""
FUSED = "update = ResourceApplyKerasMomentum(w, m, rate, gradient, factor"


def variable(name, kind, shape):
    return Variable(
        name=name,
        kind=kind,
        group=kind,
        dtype=FLOAT,
        shape=shape,
        handle=name,
        placeholder=f"{name}/initial",
        load=f"{name}/load",
        read=f"{name}/read",
    )


def step_of(update, *, targets=("slot", "update"), gradient=(3,), slot=(3,), extra=()):
    """A step with a variable of three elements, its slot, and these nodes after its gradient."""
    shapes = {"w": (3,), "m": slot}
    heads = [HEAD.format(name=name, shape=", ".join(map(str, shape))) for name, shape in shapes.items()]
    graph = from_text("".join([*heads, FORWARD, update]) + "\n")
    after = from_text(update + "\n").nodes
    return TrainGraph(
        graph=graph,
        variables=(variable("w", "trainable", Shape((3,))), variable("m", "slot", Shape(slot))),
        boundaries=(
            Boundary(
                variable="w",
                role="gradient",
                rule="mean",
                dtype=FLOAT,
                shape=Shape(gradient),
                values="gradient",
            ),
        ),
        regions=(UpdateRegion(variable="w", nodes=tuple(n.name for n in after), targets=targets),),
        batch=(BatchInput(path="0", node="x", dtype=FLOAT, shape=Shape((-1,))),),
        losses=(Loss(tensor="loss"),),
        step_targets=extra,
        readiness={"w": 0},
    )


def fused(step):
    rewritten = FuseUpdates(plan=task_plan()).apply(step, ONE)
    verify(rewritten.graph)
    assert set(rewritten.roots()) <= set(rewritten.graph.by_name)
    assert {name for r in rewritten.regions for name in r.nodes} <= set(rewritten.graph.by_name)
    return rewritten


def after_gradient(step):
    """Text after the gradient's constants."""
    return to_text(step.graph).split("factor = ")[1].splitlines()[1:]


def test_a_momentum_update_is_one_kernel():
    rewritten = fused(step_of(MOMENTUM))
    assert after_gradient(rewritten) == [f"{FUSED}) {{T=float, use_locking=True, use_nesterov=False}}"]
    assert rewritten.regions[0].targets == rewritten.regions[0].nodes == ("update",)


def test_what_waits_for_the_slot_waits_for_the_kernel():
    logged = MOMENTUM + "\nnorm = L2Loss(new) {T=float}\nlog = Print(norm, ^slot)"
    rewritten = fused(step_of(logged, extra=("log",)))
    assert after_gradient(rewritten) == [
        f"{FUSED}) {{T=float, use_locking=True, use_nesterov=False}}",
        "new = ReadVariableOp(m, ^update) {dtype=float}",
        "norm = L2Loss(new) {T=float}",
        "log = Print(norm, ^update)",
    ]


def test_what_reads_the_slot_before_still_does():
    logged = MOMENTUM + "\nnorm = L2Loss(old) {T=float}\nlog = Print(norm)"
    rewritten = fused(step_of(logged, extra=("log",)))
    assert f"{FUSED}, ^old) {{T=float, use_locking=True, use_nesterov=False}}" in after_gradient(rewritten)


def test_a_kernel_waits_for_what_the_assignments_waited_for():
    ordered = MOMENTUM.replace("(m, next, ^old)", "(m, next, ^old, ^first)").replace(
        "(w, new)", "(w, new, ^second)"
    )
    seen = "\nfirst = Print(rate)\nsecond = Print(factor)"
    rewritten = fused(step_of(seen + ordered, extra=("first",)))
    assert after_gradient(rewritten)[-1].startswith(f"{FUSED}, ^first, ^second)")


NOT_THE_SAME = {
    "a slot that is assigned twice": MOMENTUM
    + "\nagain = AssignVariableOp(m, gradient, ^new, ^update) {dtype=float}",
    "a read that may come before the slot's assignment": MOMENTUM.replace("(m, ^slot)", "(m)"),
    "another factor": MOMENTUM.replace("Mul(old, factor)", "Mul(old, gradient)"),
    "another assignment": MOMENTUM.replace("AssignAddVariableOp(w", "AssignVariableOp(w"),
    "another order": MOMENTUM.replace("Sub(kept, moved)", "Sub(moved, kept)"),
    "two rates": "\nother = Const() {dtype=float, value=float<> [0.25]}"
    + MOMENTUM.replace("(w, new)", "(w, late)").replace(
        "\nupdate",
        "\nkept_2 = Mul(new, factor) {T=float}\nmoved_2 = Mul(other, gradient) {T=float}"
        "\nlate = Sub(kept_2, moved_2) {T=float}\nupdate",
    ),
    "a rate for each element": MOMENTUM.replace("Mul(rate,", "Mul(rates,").replace(
        "\nold", "\nrates = Const() {dtype=float, value=float<3> [1.0, 2.0, 3.0]}\nold", 1
    ),
    "a rate of unknown shape": MOMENTUM.replace("Mul(rate,", "Mul(rates,").replace(
        "\nold", "\nrates = Unknown(x)\nold", 1
    ),
}


@pytest.mark.parametrize("why", NOT_THE_SAME)
def test_what_is_not_the_same_stays(why):
    targets = ("again", "slot", "update") if "again" in NOT_THE_SAME[why] else ("slot", "update")
    step = step_of(NOT_THE_SAME[why], targets=targets)
    assert fused(step) is step


@pytest.mark.parametrize("shapes", [{"gradient": ()}, {"slot": (1,)}], ids=str)
def test_what_is_spread_over_the_variable_stays(shapes):
    step = step_of(MOMENTUM, **shapes)
    assert fused(step) is step


def test_a_kernel_that_would_wait_for_itself_is_none():
    # The variable's step waits for what waits for the slot's new value: two assignments, in this order.
    waiting = MOMENTUM.replace("\nupdate", "\nseen = Print(new)\nupdate").replace(
        "(w, new)", "(w, new, ^seen)"
    )
    step = step_of(waiting)
    assert fused(step) is step


def test_other_types_than_floating_ones_stay():
    step = step_of(MOMENTUM)
    whole = replace(step, variables=tuple(replace(v, dtype=type(FLOAT)("complex64")) for v in step.variables))
    assert fused(whole) is whole
