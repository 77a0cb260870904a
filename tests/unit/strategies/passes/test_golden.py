"""What each pass makes of a step that fits on a page, as text.

To rewrite the files after a change that is meant, delete `tests/golden/passes/*.txt` and run this: a file
that is missing is written, and its test fails once, so that somebody looks at it.
"""

from pathlib import Path

import pytest

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow")

from strategies.ir.graph import DType, Node, Shape  # noqa: E402
from strategies.ir.graph import Graph as IrGraph  # noqa: E402
from strategies.ir.text import to_text  # noqa: E402
from strategies.ir.train_graph import (  # noqa: E402
    BatchInput,
    Boundary,
    Loss,
    TrainGraph,
    UpdateRegion,
    Variable,
)
from strategies.passes.of_plan import passes_of  # noqa: E402
from strategies.planning import topology_of  # noqa: E402
from strategies.registry import make_plan  # noqa: E402
from strategies.summary import summarise  # noqa: E402
from strategies.topology import Topology  # noqa: E402

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


@pytest.mark.parametrize(
    ("strategy", "task", "name"),
    [
        ("all-reduce", 0, "hoist-reads"),
        ("all-reduce", 0, "replicate"),
        ("all-reduce", 0, "combine-local"),
        ("all-reduce", 0, "transport-all-reduce"),
        ("all-reduce", 0, "dense-all-reduce"),
        ("hierarchical-all-reduce", 0, "combine-local"),
        ("hierarchical-all-reduce", 0, "hand-on"),
        ("local-sgd", 0, "average-variables"),
        ("sharded-update", 0, "shard-updates"),
        ("sharded-update", 0, "dense-reduce-scatter"),
        ("sharded-update", 1, "dense-reduce-scatter"),
        ("sharded-update", 1, "transport-all-reduce"),
        ("ps", 0, "replicate"),
        ("ps", 0, "combine-local"),
        ("ps", 0, "sync-ps"),
        ("ps", 1, "sync-ps"),
        ("ps", 1, "place"),
    ],
)
def test_golden(strategy, task, name):
    step = tiny()
    # Over the workers' own transport there is nothing left for the collectives.
    by_collectives = name in ("dense-all-reduce", "shard-updates", "dense-reduce-scatter")
    params = {"transport": "ring"} if by_collectives else {}
    plan = make_plan(
        strategy, params, summarise(step, "tiny", {}), Topology(replicas_per_task=(2, 1), batch_size=3)
    )
    for each in passes_of(plan, task):
        step = each.apply(step, topology_of(plan))
        if each.name == name:
            break
    text = to_text(step.graph) + f"# runs {', '.join(step.targets())}\n"
    path = GOLDEN / f"{name}-{strategy}-task-{task}.txt"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        pytest.fail(f"{path.name} is new; look at it, then run this again")
    assert text == path.read_text()
