"""Passes of each strategy, in order: one table of all strategies, in three shapes."""

import pytest

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow")

from golden_steps import vector
from golden_texts import check_text

from strategies.passes.pass_order import CORE_PASSES, PASSES, passes_of
from strategies.registry import STRATEGIES, make_plan
from strategies.summary import summarise
from strategies.topology import Topology

SHAPES = {"one worker of 2": (2,), "2 workers of 1": (1, 1), "2 workers of 2": (2, 2)}
REWRITING = [strategy.name for strategy in STRATEGIES if strategy.runner == "graph" and not strategy.single]


def names(strategy: str, shape: str, task: int) -> list[str]:
    topology = Topology(replicas_per_task=SHAPES[shape], batch_size=4)
    plan = make_plan(strategy, {}, summarise(vector(), "vector", {}), topology)
    return [rewrite.name for rewrite in passes_of(plan, task)]


def test_the_table_of_passes():
    rows = []
    for strategy in REWRITING:
        for shape, replicas in SHAPES.items():
            first, *others = (names(strategy, shape, task) for task in range(len(replicas)))
            assert all(other == first for other in others)
            rows.append(f"{strategy}, {shape}: {', '.join(first)}\n")
    resharding = make_plan(
        "tpu-replicate",
        {"reshard": True},
        summarise(vector(), "vector", {}),
        Topology(replicas_per_task=(2,), batch_size=4),
    )
    rows.append(
        f"tpu-replicate:reshard=true: {', '.join(rewrite.name for rewrite in passes_of(resharding, 0))}\n"
    )
    check_text("".join(rows), "../order-of-passes.txt")


@pytest.mark.parametrize("strategy", REWRITING)
def test_they_come_in_the_order_of_their_list(strategy):
    passes = CORE_PASSES if strategy == "tpu-replicate" else PASSES
    places = {rewrite.name: place for place, rewrite in enumerate(passes)}
    pass_names = names(strategy, "2 workers of 2", 0)
    assert pass_names == sorted(pass_names, key=places.__getitem__)
