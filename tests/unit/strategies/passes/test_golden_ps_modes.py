"""What the passes of a parameter server's knobs make of the step of `test_golden`, as text."""

import pytest

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow")

from test_golden import GOLDEN, tiny  # noqa: E402

from strategies.ir.text import to_text  # noqa: E402
from strategies.ir.verify import verify  # noqa: E402
from strategies.passes.of_plan import passes_of  # noqa: E402
from strategies.planning import topology_of  # noqa: E402
from strategies.registry import make_plan  # noqa: E402
from strategies.summary import summarise  # noqa: E402
from strategies.topology import Topology  # noqa: E402

ROWS = [
    ("proxy", {"local_proxy_variable": True}, 1, "proxy-variables"),
    ("async", {"sync": False}, 1, "own-mean"),
    ("async", {"sync": False}, 1, "async-updates"),
    ("staleness", {"staleness": 2}, 0, "updates-in-turn"),
    ("staleness", {"staleness": 2}, 1, "updates-in-turn"),
    ("backup", {"backup": 1}, 0, "updates-in-turn"),
    ("backup", {"backup": 1}, 1, "updates-in-turn"),
]


def all_text(step):
    contributions = [f"{c.values} * {c.weight:.4g}" for b in step.boundaries for c in b.contributions]
    rest = {
        "contributes": contributions,
        "runs": step.targets(),
        "once": step.setup,
        "beside": step.background,
        "fetches": [ref for ref in (step.taken, step.progress) if ref],
    }
    return to_text(step.graph) + "".join(f"# {what} {', '.join(names)}\n" for what, names in rest.items())


@pytest.mark.parametrize(("knob", "params", "task", "name"), ROWS)
def test_golden(knob, params, task, name):
    step = tiny()
    summary = summarise(step, "tiny", {})
    plan = make_plan("ps", params, summary, Topology(replicas_per_task=(1, 2), batch_size=3))
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
    path = GOLDEN / f"{name}-ps-{knob}-task-{task}.txt"
    if not path.exists():
        path.write_text(text)
        pytest.fail(f"{path.name} is new; look at it, then run this again")
    assert text == path.read_text()


@pytest.mark.parametrize(("params", "name"), [(row[1], row[3]) for row in ROWS if row[0] != "backup"])
def test_with_one_task_there_is_nothing_to_do(params, name):
    step = tiny()
    plan = make_plan(
        "ps", params, summarise(step, "tiny", {}), Topology(replicas_per_task=(2,), batch_size=3)
    )
    topology = topology_of(plan)
    for each in passes_of(plan, 0):
        made = each.apply(step, topology)
        assert each.name != name or made is step
        step = made
