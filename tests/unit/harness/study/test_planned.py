"""What `plan` answers of a slice that it is asked about."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from harness import pipeline
from harness.experiment.references import StrategyRef, WorkloadRef
from harness.requests import PlanRequest, Target
from strategies.plan.schema import StepSummary, VariableSummary
from strategies.registry import make_plan
from strategies.topology import Topology
from strategies.tpu_slices import parse_slice

STEP = StepSummary(
    workload="wide-mlp",
    n_nodes=1,
    variables=(
        VariableSummary(
            name="w", kind="trainable", dtype="float", shape=(1000,), bytes=4000, synced=True, readiness=0
        ),
    ),
    batch=(),
)
PLAN = make_plan("all-reduce", {}, STEP, Topology(replicas_per_task=(2, 2), batch_size=8))
TARGET = Target(
    workload=WorkloadRef(reference="wide-mlp"), strategy=StrategyRef(name="all-reduce"), workers=2, replicas=2
)


@contextmanager
def study(target: Target, **_: object) -> Iterator[SimpleNamespace]:
    yield SimpleNamespace(plan=PLAN, capture=SimpleNamespace(summary=STEP))


def test_a_plan_is_costed_on_the_slice_that_was_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "study", study)
    asked = PlanRequest(target=TARGET, slice=parse_slice("v4:2x2x1"))
    cost = pipeline.plan(asked).slice_cost
    assert cost is not None
    assert cost.all_reduce_s == pytest.approx(2 * 3 / 4 * 4000 / (2 * 50e9))
    assert pipeline.plan(PlanRequest(target=TARGET)).slice_cost is None
