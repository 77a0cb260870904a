"""Passes of a parameter server's knobs, applied to the step of `golden_steps`, as text."""

import pytest

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow")

from golden_steps import check_pass, tiny

from strategies.passes.pass_order import passes_of
from strategies.planner import topology_of
from strategies.registry import make_plan
from strategies.summary import summarise
from strategies.topology import Topology

ROWS = [
    ("proxy", {"local_proxy_variable": True}, 1, "proxy-variables"),
    ("async", {"sync": False}, 1, "worker-mean"),
    ("async", {"sync": False}, 1, "async-updates"),
    ("staleness", {"staleness": 2}, 0, "semi-sync-ps"),
    ("staleness", {"staleness": 2}, 1, "semi-sync-ps"),
    ("backup", {"backup": 1}, 0, "semi-sync-ps"),
    ("backup", {"backup": 1}, 1, "semi-sync-ps"),
]


@pytest.mark.parametrize(("knob", "params", "task", "name"), ROWS)
def test_golden(knob, params, task, name):
    step = tiny()
    summary = summarise(step, "tiny", {})
    plan = make_plan("ps", params, summary, Topology(replicas_per_task=(1, 2), batch_size=3))
    check_pass(step, plan, task, name, f"{name}-ps-{knob}-task-{task}.txt")


@pytest.mark.parametrize(("params", "name"), [(row[1], row[3]) for row in ROWS if row[0] != "backup"])
def test_with_one_task_there_is_nothing_to_do(params, name):
    step = tiny()
    plan = make_plan(
        "ps", params, summarise(step, "tiny", {}), Topology(replicas_per_task=(2,), batch_size=3)
    )
    topology = topology_of(plan)
    for rewrite in passes_of(plan, 0):
        rewritten = rewrite.apply(step, topology)
        assert rewrite.name != name or rewritten is step
        step = rewritten
