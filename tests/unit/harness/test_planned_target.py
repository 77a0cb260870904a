""" """

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from harness import pipeline
from harness.errors import UsageError
from harness.experiment.references import StrategyRef, WorkloadRef, parse_strategy, parse_workload
from harness.planned_target import refuse_what_workers_lack, require_last_batch
from harness.requests import PlanRequest, Target, VerifyRequest
from harness.verification.worker.capture import CapturedWorkload
from strategies.plan.schema import StepSummary, VariableSummary
from strategies.registry import make_plan
from strategies.topology import Topology
from strategies.tpu_slices import parse_slice

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


def request(strategy: str = "all-reduce", **options: Any) -> VerifyRequest:
    target = Target(
        workload=parse_workload("digits-mlp", field="workload"),
        strategy=parse_strategy(strategy, field="strategy"),
        device="gpu",
    )
    return VerifyRequest(target=target, **options)


def test_exact_strategies_are_verified_in_the_model_s_types() -> None:
    refuse_what_workers_lack(request())
    refuse_what_workers_lack(request(dtype="model"))


@pytest.mark.parametrize(
    ("strategy", "options", "field"),
    [
        ("all-reduce", {"dtype": "float64"}, "dtype"),
        ("all-reduce", {"last_batch": 3}, "last_batch"),
        ("all-reduce", {"shrink": True}, "shrink"),
        ("all-reduce:compressor=topk", {}, "device"),
        ("local-sgd", {}, "device"),
    ],
)
def test_what_needs_all_workers_in_one_process_is_refused(
    strategy: str, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(UsageError) as refused:
        refuse_what_workers_lack(request(strategy, **options))
    assert refused.value.field == field


WIDE = StepSummary(
    workload="wide-mlp",
    n_nodes=1,
    variables=(
        VariableSummary(
            name="w", kind="trainable", dtype="float", shape=(1000,), bytes=4000, synced=True, readiness=0
        ),
    ),
    batch=(),
)
PLAN = make_plan("all-reduce", {}, WIDE, Topology(replicas_per_task=(2, 2), batch_size=8))
TARGET = Target(
    workload=WorkloadRef(reference="wide-mlp"), strategy=StrategyRef(name="all-reduce"), workers=2, replicas=2
)


@contextmanager
def capture_and_plan(target: Target, **_: object) -> Iterator[SimpleNamespace]:
    yield SimpleNamespace(plan=PLAN, capture=SimpleNamespace(summary=WIDE))


def test_a_plan_is_costed_on_the_slice_that_was_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "capture_and_plan", capture_and_plan)
    plan_request = PlanRequest(target=TARGET, slice=parse_slice("v4:2x2x1"))
    cost = pipeline.plan(plan_request).slice_cost
    assert cost is not None
    assert cost.seconds["sum"] == pytest.approx(2 * 3 / 4 * 4000 / (2 * 50e9))
    assert pipeline.plan(PlanRequest(target=TARGET)).slice_cost is None
