import pytest

from harness.errors import UsageError
from harness.study.last_batch import require_last_batch
from strategies.plan.schema import StepSummary, VariableSummary
from strategies.planning.registry import make_plan
from strategies.topology import Topology

WEIGHT = VariableSummary(
    name="w", kind="trainable", dtype="float", shape=(3,), bytes=12, synced=True, readiness=0
)
STEP = StepSummary(workload="w", n_nodes=1, variables=(WEIGHT,), batch=())
TWO = Topology(replicas_per_task=(1, 1), batch_size=7)


def test_any_size_that_gives_each_replica_an_example_will_do():
    plan = make_plan("ps", {}, STEP, TWO)
    for n_examples in (2, 5, 7):
        require_last_batch(n_examples, plan, replica_batch=None)


@pytest.mark.parametrize(
    ("strategy", "params", "n_examples", "replica_batch", "message"),
    [
        ("ps", {}, 1, None, "must give each shard an example .* got 1; choose one from 2 to 7"),
        ("ps", {}, 8, None, "no larger than the others, got 8; choose one from 2 to 7"),
        ("ps", {}, 5, 4, "takes any number of examples, got one that takes 4 on each replica; drop it"),
        ("ps", {"sync": False}, 5, None, "for exact strategies, got ps, which is statistical; drop it"),
    ],
)
def test_what_cannot_be_compared_is_refused(strategy, params, n_examples, replica_batch, message):
    plan = make_plan(strategy, params, STEP, TWO)
    with pytest.raises(UsageError, match=message) as raised:
        require_last_batch(n_examples, plan, replica_batch=replica_batch)
    assert raised.value.field == "last_batch"
    assert "\n" not in str(raised.value)
