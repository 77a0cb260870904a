"""The command line in this process, and a pipeline that stands in for the real one."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from _pytest.capture import CaptureResult

from harness.cli import main
from harness.experiment.model import Experiment
from harness.experiment.references import StrategyRef
from harness.pipeline import RunOutcome, Written
from harness.planned_target import Planned, Verified
from harness.prediction.goals import Goal
from harness.prediction.plan_search import Candidate, PredictedPlan
from harness.prediction.predictions import Predicted, Prediction, Question
from harness.prediction.recommendation import Measured, RankedPlan, Recommendation
from harness.prediction.slices import SliceCost
from harness.requests import (
    PlanRequest,
    PredictRequest,
    RecommendRequest,
    RunOptions,
    TransformRequest,
    VerifyRequest,
)
from harness.verification.separability import Separability
from harness.verification.verdict import FLOAT64_EPS, Limits, VariableVerdict, Verdict
from harness.verification.verification import CaptureVerdict, Verification
from harness.worker.jobs.transform import Transformation
from strategies.passes.run import PassTiming
from strategies.plan.exchanges.flow import Op
from strategies.plan.schema import Partition, Plan, PlanNode, StatisticSummary, TaskTraffic
from strategies.plan.traffic import CollectiveBytes, PayloadMatrix

WRITTEN = Written(
    path=Path("runs/x/report.html"),
    text="wide-mlp\n  WINNER  ps",
)
PLAN = Plan(
    workload="wide-mlp",
    strategy="ps",
    strategy_params={},
    strategy_class="exact",
    replicas_per_task=(1, 1),
    batch_size=16,
    device="cpu",
    nodes=(
        PlanNode(
            variable="dense/kernel",
            shape=(64, 1200),
            dtype="float32",
            bytes=307200,
            sparse=False,
            partition=Partition(axis=0, sizes=(32, 32), destinations=(0, 1)),
            synchronizer="ps",
            destination=0,
        ),
    ),
    payload_bytes_per_step=614400,
    traffic=(TaskTraffic(tasks=(0, 1), sent_bytes=307200, received_bytes=307200),),
    server_bytes=(307200, 0),
    worker_bytes=614400,
    statistics=(StatisticSummary(layer="norm_0", bytes=256), StatisticSummary(layer="norm_1", bytes=512)),
    notes=("one variable stays whole",),
    warnings=("nothing is partitioned",),
)


def verified(
    *,
    wrong: Sequence[str] = (),
    noisy: Sequence[str] = (),
    separable: bool | None = True,
    captured: bool | None = True,
) -> Verified:
    """Answer of `verify` on nine slots, v0 to v8, the last of them nearest to its limit.

    Args:
        wrong: names of slots that are off by 1. noisy: names of small ones that cannot be judged.
    """
    variables = tuple(
        VariableVerdict(
            name=name,
            kind="slot",
            group="m",
            n_elements=1 if name in noisy else 1000,
            update_error=1.0 if name in wrong else 1e-16,
            limits=Limits(
                floor=float("nan"), tolerance=2.0 if name in noisy else 1e-13 / (index + 1), eps=FLOAT64_EPS
            ),
        )
        for index, name in enumerate(f"v{index}" for index in range(9))
    )
    verification = Verification(
        strategy_class="exact",
        verdict=Verdict(variables=variables),
        losses=(2.0,),
        reference_losses=(2.0,),
        separability=Separability(separable=separable, explanation="what shards make of it"),
        capture=CaptureVerdict(equal=captured, explanation="what capture makes of it", steps=2),
    )
    return Verified(
        plan=PLAN, steps=4, dtype="float64", restored=None, last_batch=None, verification=verification
    )


def predicted_plan(step_s: float, n_workers: int = 2, title: str = "all-reduce") -> PredictedPlan:
    """A predicted plan of made-up figures."""
    question = Question(workers=n_workers, batch_size=64, link_mbit=100.0)
    prediction = Prediction(
        workload="wide-mlp",
        strategy=StrategyRef(name="all-reduce"),
        params={},
        question=question,
        step_s=step_s,
        low_s=step_s / 1.1,
        high_s=step_s * 1.1,
        efficiency=0.9,
        payload_bytes=2_000_000,
        busiest_bytes=1_000_000,
        memory_bytes=500_000,
        limited_by="link",
    )
    candidate = Candidate(builders=(StrategyRef(name="all-reduce"),))
    return PredictedPlan(title=title, candidate=candidate, prediction=prediction)


RECOMMENDATION = Recommendation(
    goal=Goal.FASTEST,
    workload="wide-mlp",
    question=Question(workers=2, batch_size=64, link_mbit=100.0),
    plans=(
        RankedPlan(
            predicted=predicted_plan(0.010, title="all-reduce; table by ps"),
            plan=PLAN,
            why="limited by link",
            measured=Measured(
                step_s=0.011, interval_s=(0.010, 0.012), ratio=1.2, ratio_interval=(1.1, 1.3), n_repeats=4
            ),
        ),
        RankedPlan(predicted=predicted_plan(0.0105), plan=PLAN, why="the reference", problem="it fell over"),
    ),
    reference=predicted_plan(0.0105),
    n_predictions=20,
    is_complete=True,
    notes=("one thing to know",),
    run_dir=Path("runs/profile"),
    path=Path("best.plan.json"),
    measured_in=Path("runs/recommend"),
)


class Pipeline(ModuleType):
    """Stands in for `harness.pipeline` and `harness.foresight`: notes requests, returns set answers."""

    def __init__(self) -> None:
        super().__init__("harness.pipeline")
        self.asked: list[Any] = []
        self.raises: BaseException | None = None
        self.verified = verified()
        self.collectives = CollectiveBytes(all_reduce_bytes=3e9, reduce_scatter_bytes=0, all_gather_bytes=0)
        self.collective_s: Mapping[Op, float] = {"sum": 0.035}
        self.predicted: Predicted | None = None
        self.recommendation = RECOMMENDATION
        self.outcome = RunOutcome(run_dir=Path("runs/x"), report=WRITTEN, n_ok=3)

    def _note(self, *values: Any) -> None:
        self.asked.append(values[0] if len(values) == 1 else values)
        print("chatter of a user's workload")  # noqa: T201
        if self.raises is not None:
            raise self.raises

    def run(self, spec: Experiment, options: RunOptions) -> RunOutcome:
        self._note(spec, options)
        return self.outcome

    def verify(self, request: VerifyRequest) -> Verified:
        self._note(request)
        return self.verified

    def recommend(self, request: RecommendRequest) -> Recommendation:
        self._note(request)
        return self.recommendation

    def predict(self, request: PredictRequest) -> Predicted:
        self._note(request)
        assert self.predicted is not None
        return self.predicted

    def plan(self, request: PlanRequest) -> Planned:
        self._note(request)
        if request.slice is None:
            matrix = PayloadMatrix(sent=((0, 307200), (307200, 0)), pulled=((0, 0), (0, 0)))
            return Planned(
                plan=PLAN.model_copy(update={"shares_devices": request.target.share_gpus}),
                matrix=matrix if request.matrix else None,
            )
        cost = SliceCost(slice=request.slice, collectives=self.collectives, seconds=self.collective_s)
        return Planned(plan=PLAN, slice_cost=cost)

    def transform(self, request: TransformRequest) -> Transformation:
        self._note(request)
        return Transformation(
            nodes_before=10,
            nodes_after=24,
            passes=(PassTiming(name="replicate", seconds=0.01, nodes=20),),
            text="node a\nnode b\n" if request.text else None,
        )


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, CaptureResult[str]]:
    status = main(arguments)
    return status, capsys.readouterr()


def document(captured: CaptureResult[str]) -> Any:
    return json.loads(captured.out, parse_constant=pytest.fail)
