"""A step that fits on a page, and how what passes make of it is compared with a stored text."""

from dataclasses import replace

from golden_texts import check_text
from graph_text import from_text
from transfers import shares_of

from strategies.ir.graph import DType, Shape
from strategies.ir.graph_rules import verify
from strategies.ir.text import to_text
from strategies.ir.train_graph import BatchInput, Boundary, Loss, TrainGraph, UpdateRegion
from strategies.ir.variable import Variable
from strategies.passes.pass_order import passes_of
from strategies.plan.schema import Plan
from strategies.planner import topology_of

FLOAT, SCALAR = DType("float"), Shape(())


TINY = """
w = VarHandleOp() {container='', dtype=float, shape=<>, shared_name='w'}
w/initial = Placeholder() {dtype=float, shape=<>}
w/load = AssignVariableOp(w, w/initial) {dtype=float}
w/read = ReadVariableOp(w) {dtype=float}
x = Placeholder() {dtype=float, shape=<?>}
first = ReadVariableOp(w) {dtype=float}
second = ReadVariableOp(w) {dtype=float}
loss = Loss(x, first, second)
backward = Gradient(x)
gradient = Identity(backward) {T=float}
update = AssignSubVariableOp(w, gradient, ^first, ^second) {dtype=float}
"""


def tiny() -> TrainGraph:
    """loss = mean(x * w), whose update is w -= mean(x); w is read twice."""
    return TrainGraph(
        graph=from_text(TINY),
        variables=(
            Variable(
                name="w",
                kind="trainable",
                group="trainable",
                dtype=FLOAT,
                shape=SCALAR,
                handle="w",
                placeholder="w/initial",
                load="w/load",
                read="w/read",
            ),
        ),
        boundaries=(
            Boundary(
                variable="w", role="gradient", rule="mean", dtype=FLOAT, shape=SCALAR, values="gradient"
            ),
        ),
        regions=(UpdateRegion(variable="w", nodes=("update",), targets=("update",)),),
        batch=(BatchInput(path="0", node="x", dtype=FLOAT, shape=Shape((-1,))),),
        losses=(Loss(tensor="loss"),),
        readiness={"w": 0},
    )


def three_numbers() -> TrainGraph:
    """The tiny step with a vector of three numbers, so that three replicas can update one each."""
    step, shape = tiny(), Shape((3,))
    return replace(
        step,
        graph=from_text(TINY.replace("shape=<>", "shape=<3>")),
        variables=(replace(step.variables[0], shape=shape),),
        boundaries=(replace(step.boundaries[0], shape=shape),),
    )


VECTOR_NODES = """
w = VarHandleOp() {{container='', dtype=float, shape=<3>, shared_name='w'}}
w/initial = Placeholder() {{dtype=float, shape=<3>}}
w/load = AssignVariableOp(w, w/initial) {{dtype=float}}
w/read = ReadVariableOp(w) {{dtype=float}}
x = Placeholder() {{dtype=float, shape=<?>}}
first = ReadVariableOp(w) {{dtype=float}}
second = ReadVariableOp(w) {{dtype=float}}
loss = Loss(x, first, second)
backward = Gradient(x)
gradient = Identity(backward) {{T=float}}
squared = Square(gradient) {{T=float}}
norm = L2Loss(squared) {{T=float}}
scaled = Mul(squared, norm) {{T=float}}
update = {update}(w, scaled) {{dtype=float}}
"""


def vector(update="AssignSubVariableOp", more=""):
    """The tiny step with a vector of three for its variable, and a learning rate in the update."""
    step = tiny()
    return replace(
        step,
        graph=from_text(VECTOR_NODES.format(update=update) + more),
        variables=(replace(step.variables[0], shape=Shape((3,))),),
        boundaries=(replace(step.boundaries[0], shape=Shape((3,))),),
        regions=(replace(step.regions[0], nodes=("squared", "norm", "scaled", "update")),),
    )


def text_of(step: TrainGraph) -> str:
    """The graph, what of it is run, and what a transport moves."""
    return to_text(step.graph) + f"# runs {', '.join(step.targets())}\n" + _moved(step)


def all_text(step: TrainGraph) -> str:
    """The graph, and all that a pass may have said of it."""
    contributions = [f"{c.values} * {c.weight:.4g}" for b in step.boundaries for c in b.contributions]
    rest = {
        "contributes": contributions,
        "runs": step.targets(),
        "once": step.setup,
        "beside": step.background,
        "fetches": [ref for ref in (step.n_taken, step.progress) if ref],
    }
    text = "".join(f"# {what} {', '.join(names)}\n" for what, names in rest.items())
    return to_text(step.graph) + text + _moved(step)


def _moved(step: TrainGraph) -> str:
    return "".join(
        f"# moves {t.name}: {t.kind} of {shares_of(t)} at level {t.level}, as {t.wire or 'it is'}, "
        f"times {t.factor:.4g}\n"
        for t in step.transfers
    )


def check_pass(step: TrainGraph, plan: Plan, task: int, name: str, file: str) -> None:
    """Check that a pass gives the stored text, the same each time, and leaves its input alone."""
    topology = topology_of(plan)
    passes = list(passes_of(plan, task))
    names = [rewrite.name for rewrite in passes]
    assert name in names, f"{name} is none of the plan's passes: {', '.join(names)}"
    *earlier, last = passes[: names.index(name) + 1]
    for one in earlier:
        step = one.apply(step, topology)
    before = all_text(step)
    rewritten = last.apply(step, topology)
    after = all_text(rewritten)
    assert after == all_text(last.apply(step, topology))
    assert all_text(step) == before != after
    verify(rewritten.graph)
    check_text(f"## before {name}\n{before}\n## after {name}\n{after}", file)
