import pytest

from harness.errors import UsageError
from harness.study import require_last_batch
from harness.verification.worker.capture import CapturedWorkload
from strategies.plan.schema import StepSummary, VariableSummary
from strategies.registry import make_plan
from strategies.topology import Topology

WEIGHT = VariableSummary(
    name="w", kind="trainable", dtype="float", shape=(3,), bytes=12, synced=True, readiness=0
)
STEP = StepSummary(workload="w", n_nodes=1, variables=(WEIGHT,), batch=())
TWO = Topology(replicas_per_task=(1, 1), batch_size=7)


def facts(**of_step):
    return CapturedWorkload(
        **{"summary": STEP, "batch_size": 7, "flops_per_example": None, "replica_batch": None, **of_step}
    )


def test_any_size_that_gives_each_replica_an_example_will_do():
    plan = make_plan("ps", {}, STEP, TWO)
    for n_examples in (2, 5, 7):
        require_last_batch(n_examples, plan, facts())
    require_last_batch(7, plan, facts(replica_batch=4, draws_from_ops=True))


@pytest.mark.parametrize(
    ("params", "n_examples", "of_step", "message"),
    [
        ({}, 1, {}, "must give each shard an example .* got 1; choose one from 2 to 7"),
        ({}, 8, {}, "no larger than the others, got 8; choose one from 2 to 7"),
        ({}, 5, {"replica_batch": 4}, "got one that takes 4 on each replica; drop it"),
        ({}, 5, {"draws_from_ops": True}, "draws from operations' own states; draw with keras.random"),
        ({"sync": False}, 5, {}, "for exact strategies, got ps, which is statistical; drop it"),
    ],
)
def test_what_cannot_be_compared_is_refused(params, n_examples, of_step, message):
    plan = make_plan("ps", params, STEP, TWO)
    with pytest.raises(UsageError, match=message) as raised:
        require_last_batch(n_examples, plan, facts(**of_step))
    assert raised.value.field == "last_batch"
    assert "\n" not in str(raised.value)
