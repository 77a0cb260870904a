"""What micro-batches make of the step of `test_golden`, as text."""

import pytest

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow")

from test_golden import GOLDEN, tiny  # noqa: E402
from test_golden_ps_modes import all_text  # noqa: E402

from strategies.ir.verify import verify  # noqa: E402
from strategies.passes.accumulate import Accumulate  # noqa: E402
from strategies.passes.of_plan import passes_of  # noqa: E402
from strategies.planning import topology_of  # noqa: E402
from strategies.registry import make_plan  # noqa: E402
from strategies.summary import summarise  # noqa: E402
from strategies.topology import Topology  # noqa: E402


@pytest.mark.parametrize(
    ("strategy", "task", "name"),
    [("all-reduce", 0, "replicate"), ("all-reduce", 0, "accumulate"), ("ps", 1, "accumulate")],
)
def test_golden(strategy, task, name):
    step = tiny()
    shape = Topology(replicas_per_task=(1, 2), batch_size=7)
    plan = make_plan(strategy, {"accumulate": 2}, summarise(step, "tiny", {}), shape)
    topology = topology_of(plan)
    for each in passes_of(plan, task):
        if each.name == name:
            break
        step = each.apply(step, topology)
    before = all_text(step)
    text = all_text(each.apply(step, topology))
    assert text == all_text(each.apply(step, topology))
    assert all_text(step) == before != text
    verify(each.apply(step, topology).graph)
    path = GOLDEN / f"{name}-{strategy}-accumulate-task-{task}.txt"
    if not path.exists():
        path.write_text(text)
        pytest.fail(f"{path.name} is new; look at it, then run this again")
    assert text == path.read_text()


def test_one_shard_for_each_replica_takes_no_turns():
    step = tiny()
    assert Accumulate(task=0).apply(step, Topology(replicas_per_task=(1, 1), batch_size=4)) is step
