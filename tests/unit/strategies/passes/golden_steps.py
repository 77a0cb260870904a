"""A step that fits on a page, and how what passes make of it is compared with a stored text.

To rewrite the files after a change that is meant, delete `tests/golden/passes/*.txt` and run the tests: a
file that is missing is written, and its test fails once, so that somebody looks at it.
"""

from pathlib import Path

import pytest

from strategies.ir.graph import DType, Node, Shape
from strategies.ir.graph import Graph as IrGraph
from strategies.ir.graph_rules import verify
from strategies.ir.text import to_text
from strategies.ir.train_graph import BatchInput, Boundary, Loss, TrainGraph, UpdateRegion, Variable
from strategies.passes.pass_order import passes_of
from strategies.plan.schema import Plan
from strategies.planning.plan import topology_of

GOLDEN = Path(__file__).parents[3] / "golden" / "passes"
FLOAT, SCALAR = DType("float"), Shape(())


def node(name, op, *inputs, **attrs):
    return Node(name=name, op=op, inputs=inputs, attrs=attrs)


def tiny() -> TrainGraph:
    """loss = mean(x * w), whose update is w -= mean(x); w is read twice."""
    graph = IrGraph(
        nodes=(
            node("w", "VarHandleOp", dtype=FLOAT, shape=SCALAR, shared_name=b"w", container=b""),
            node("w/initial", "Placeholder", dtype=FLOAT, shape=SCALAR),
            node("w/load", "AssignVariableOp", "w", "w/initial", dtype=FLOAT),
            node("w/read", "ReadVariableOp", "w", dtype=FLOAT),
            node("x", "Placeholder", dtype=FLOAT, shape=Shape((-1,))),
            node("first", "ReadVariableOp", "w", dtype=FLOAT),
            node("second", "ReadVariableOp", "w", dtype=FLOAT),
            node("loss", "Loss", "x", "first", "second"),
            node("backward", "Gradient", "x"),
            node("gradient", "Identity", "backward", T=FLOAT),
            node("update", "AssignSubVariableOp", "w", "gradient", "^first", "^second", dtype=FLOAT),
        )
    )
    return TrainGraph(
        graph=graph,
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


def text_of(step: TrainGraph) -> str:
    """The graph, and what of it is run."""
    return to_text(step.graph) + f"# runs {', '.join(step.targets())}\n"


def all_text(step: TrainGraph) -> str:
    """The graph, and all that a pass may have said of it."""
    contributions = [f"{c.values} * {c.weight:.4g}" for b in step.boundaries for c in b.contributions]
    rest = {
        "contributes": contributions,
        "runs": step.targets(),
        "once": step.setup,
        "beside": step.background,
        "fetches": [ref for ref in (step.taken, step.progress) if ref],
    }
    return to_text(step.graph) + "".join(f"# {what} {', '.join(names)}\n" for what, names in rest.items())


def check_pass(step: TrainGraph, plan: Plan, task: int, name: str, file: str) -> None:
    """What the pass of this name makes is as stored, the same each time, and leaves what it takes alone."""
    topology = topology_of(plan)
    passes = list(passes_of(plan, task))
    names = [each.name for each in passes]
    assert name in names, f"{name} is none of the plan's passes: {', '.join(names)}"
    *earlier, each = passes[: names.index(name) + 1]
    for one in earlier:
        step = one.apply(step, topology)
    before = all_text(step)
    made = each.apply(step, topology)
    assert all_text(made) == all_text(each.apply(step, topology))
    assert all_text(step) == before != all_text(made)
    verify(made.graph)
    check_text(all_text(made), file)


def check_text(text: str, file: str) -> None:
    """The text is that of the file, which is written where there is none."""
    path = GOLDEN / file
    if not path.exists():
        path.write_text(text)
        pytest.fail(f"{path.name} is new; look at it, then run this again")
    assert text == path.read_text()
