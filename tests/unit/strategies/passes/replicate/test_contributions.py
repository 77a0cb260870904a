"""Micro-batches of the step of `golden_steps`, as text."""

import pytest

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow")

from golden_steps import check_pass, tiny
from task_plans import task_plan

from strategies.passes.replicate.contributions import Accumulate
from strategies.registry import make_plan
from strategies.summary import summarise
from strategies.topology import Topology


@pytest.mark.parametrize(
    ("strategy", "task", "name"),
    [("all-reduce", 0, "replicate"), ("all-reduce", 0, "accumulate"), ("ps", 1, "accumulate")],
)
def test_golden(strategy, task, name):
    step = tiny()
    shape = Topology(replicas_per_task=(1, 2), batch_size=7)
    plan = make_plan(strategy, {"accumulate": 2}, summarise(step, "tiny", {}), shape)
    check_pass(step, plan, task, name, f"{name}-{strategy}-accumulate-task-{task}.txt")


def test_one_shard_for_each_replica_takes_no_turns():
    step = tiny()
    assert Accumulate(plan=task_plan()).apply(step, Topology(replicas_per_task=(1, 1), batch_size=4)) is step
