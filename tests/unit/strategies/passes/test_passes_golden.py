"""Each pass, applied to a step that fits on a page, as text."""

import pytest

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow")

from golden_steps import text_of, three_numbers, tiny
from golden_texts import check_text

from strategies.passes.pass_order import passes_of
from strategies.plan.faults import fault_of
from strategies.planner import topology_of
from strategies.registry import make_plan
from strategies.summary import summarise
from strategies.topology import Topology


@pytest.mark.parametrize(
    ("strategy", "task", "name"),
    [
        ("all-reduce", 0, "hoist-reads"),
        ("all-reduce", 0, "replicate"),
        ("all-reduce", 0, "local-reduce"),
        ("all-reduce", 0, "tcp-all-reduce"),
        ("all-reduce", 0, "dense-all-reduce"),
        ("all-reduce", 0, "compressed-all-reduce"),
        ("all-reduce", 0, "rounded-gradients"),
        ("hierarchical-all-reduce", 0, "leader-reduce"),
        ("hierarchical-all-reduce", 0, "local-reduce"),
        ("hierarchical-all-reduce", 0, "leader-broadcast"),
        ("local-sgd", 0, "average-variables"),
        ("sharded-update", 0, "shard-updates"),
        ("fully-sharded", 0, "gather-variables"),
        ("fully-sharded", 1, "gather-variables"),
        ("fully-sharded", 1, "shard-updates"),
        ("sharded-update", 0, "dense-reduce-scatter"),
        ("sharded-update", 1, "dense-reduce-scatter"),
        ("sharded-update", 1, "tcp-all-reduce"),
        ("ps", 0, "replicate"),
        ("ps", 0, "local-reduce"),
        ("ps", 0, "sync-ps"),
        ("ps", 1, "sync-ps"),
        ("ps", 1, "placement"),
        ("ps", 0, "compressed-push"),
        ("ps", 1, "compressed-push"),
        ("ps", 1, "inject-faults"),
        ("robust-all-reduce", 1, "aggregate-gathered"),
        ("robust-ps", 0, "sync-ps"),
        ("robust-ps", 1, "sync-ps"),
        ("robust-ps", 0, "replicated-servers"),
        ("robust-ps", 2, "replicated-servers"),
    ],
)
def test_golden(strategy, task, name):
    step = tiny()
    # Over the workers' own transport there is nothing left for the collectives.
    by_collectives = name in (
        "dense-all-reduce",
        "compressed-all-reduce",
        "shard-updates",
        "dense-reduce-scatter",
    )
    params = {"transport": "ring"} if by_collectives else {}
    if name.startswith(("compressed", "rounded")):
        params["compressor"] = "bf16-ef" if name.startswith("rounded") else "fp16-ef"
    replicas = (2, 1)
    if name == "replicated-servers":
        params["servers"], replicas = 2, (1, 1, 1)
    if strategy.startswith("robust"):
        params["rule"] = "mean"
    plan = make_plan(
        strategy, params, summarise(step, "tiny", {}), Topology(replicas_per_task=replicas, batch_size=3)
    )
    if name == "inject-faults":
        fault = fault_of({"worker": task, "kind": "sign-flip"}, seed=0)
        plan = plan.model_copy(update={"faults": (fault,)})
    for rewrite in passes_of(plan, task):
        step = rewrite.apply(step, topology_of(plan))
        if rewrite.name == name:
            break
    check_text(text_of(step), f"{name}-{strategy}-task-{task}.txt")


@pytest.mark.parametrize("task", [0, 1])
def test_golden_of_a_variable_in_parts(task):
    step, topology = three_numbers(), Topology(replicas_per_task=(2, 1), batch_size=3)
    params = {"transport": "ring", "min_bytes": 1}
    plan = make_plan("sharded-update", params, summarise(step, "tiny", {}), topology)
    for rewrite in passes_of(plan, task):
        step = rewrite.apply(step, topology)
        if rewrite.name == "dense-reduce-scatter":
            break
    text = text_of(step)
    assert "CollectiveAllToAllV2" in text
    check_text(text, f"dense-reduce-scatter-in-parts-task-{task}.txt")
