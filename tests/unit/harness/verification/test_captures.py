"""Work done once for all cases of a run, and errors that are remembered."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_processes import require_call

from harness.cluster import ClusterShape
from harness.errors import UNSUPPORTED, CaseError
from harness.experiment.cases import Case
from harness.experiment.model import Computation
from harness.experiment.references import StrategyRef, WorkloadRef
from harness.measure.timeouts import CAPTURE_S, USUAL, Timeouts
from harness.provision import accelerators
from harness.provision.accelerators import Gpu
from harness.provision.failures import USER_ERROR
from harness.verification.captures import Captures, planned, planned_to_run, topology_of_case
from harness.verification.worker.capture import CapturedWorkload, capture
from harness.verification.worker.jobs import separability
from harness.worker.process.job import job_name
from strategies.plan.schema import StepSummary


class Jobs:
    """Answers as the jobs of captures do, and counts them."""

    def __init__(self, *, error: CaseError | None = None, replica_batch: int | None = None) -> None:
        self.asked: list[str] = []
        self.limits_s: list[float] = []
        self.error = error
        self.replica_batch = replica_batch
        self.compilable: list[bool] = []
        self.looked_at: list[Path] = []

    def __call__(self, job: Any, args: tuple[Any, ...], *, timeout_s: float, stage: str) -> Any:
        require_call(job, args)
        self.asked.append(job_name(job))
        self.limits_s.append(timeout_s)
        if self.error is not None:
            raise self.error
        if job is separability:
            self.looked_at.append(args[0].capture)
        if job is not capture:
            return None
        self.compilable.append(args[-1] is not None)
        summary = StepSummary(workload="w", variables=(), batch=(), n_nodes=1)
        return CapturedWorkload(
            summary=summary, batch_size=8, flops_per_example=None, replica_batch=self.replica_batch
        )


def case(*, workers: int = 2, strategy: str = "ps", accumulate: int = 1, **params: int) -> Case:
    return Case(
        id=f"{strategy}-{workers}",
        workload=WorkloadRef(reference="w", params=params),
        strategy=StrategyRef(name=strategy, params={"accumulate": accumulate} if accumulate > 1 else {}),
        shape=ClusterShape(workers=workers),
        batch_size=params.get("batch_size"),
    )


def captures(folder: Path, jobs: Jobs, timeouts: Timeouts = USUAL) -> Captures:
    return Captures(folder, jobs, seed=0, n_batches=2, n_least=1, timeouts=timeouts)


def test_strategies_and_shapes_share_a_capture_and_batches(tmp_path: Path) -> None:
    jobs = Jobs()
    captured = captures(tmp_path, jobs)
    for one in (case(), case(workers=4), case(strategy="none")):
        captured.batches(one, captured.of(one))
    assert jobs.asked == ["capture", "write_batches"]


def test_a_checkpoint_above_the_current_folder_is_named_from_the_root_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outputs: list[Path] = []

    def worker_path(path: Path) -> Path:
        outputs.append(path)
        return path

    above = Path("..", "checkpoint")
    Captures(tmp_path, Jobs(), seed=0, n_batches=2, n_least=1, restore=above, worker_path=worker_path).of(
        case()
    )
    assert outputs == [tmp_path.parent / "checkpoint"]


def test_each_precision_has_a_capture_and_xla_shares_it(tmp_path: Path) -> None:
    jobs = Jobs()
    captured = captures(tmp_path, jobs)
    for computation in (Computation(), Computation(xla=True), Computation(precision="bfloat16")):
        one = replace(case(), computation=computation)
        captured.batches(one, captured.of(one))
    assert jobs.asked == ["capture", "write_batches", "capture"]


def test_what_does_not_follow_a_precision_is_tried_once(tmp_path: Path) -> None:
    jobs = Jobs(error=CaseError(UNSUPPORTED, "no", stage="capture"))
    captured = captures(tmp_path, jobs)
    for _ in range(2):
        with pytest.raises(CaseError, match="no"):
            captured.of(case())
    assert jobs.asked == ["capture"]


def test_another_batch_size_shares_the_capture_only(tmp_path: Path) -> None:
    jobs = Jobs()
    captured = captures(tmp_path, jobs)
    for one in (case(), case(batch_size=16)):
        captured.batches(one, captured.of(one))
    assert jobs.asked == ["capture", "write_batches", "write_batches"]


def test_a_step_of_fixed_batch_is_captured_for_each_share(tmp_path: Path) -> None:
    jobs = Jobs(replica_batch=4)
    captured = captures(tmp_path, jobs)
    first, second = captured.of(case(workers=2)), captured.of(case(workers=4))
    assert first.folder != second.folder
    assert captured.of(case(workers=4)) is second
    assert jobs.asked == ["capture", "capture"]


def test_a_batch_that_a_step_refuses_leaves_other_batches_alone(tmp_path: Path) -> None:
    refusal = CaseError(USER_ERROR, "takes batches of 4 examples only", stage="capture")
    jobs = Jobs(replica_batch=4, error=refusal)
    captured = captures(tmp_path, jobs)
    for _ in range(2):
        with pytest.raises(CaseError, match="4 examples only"):
            captured.of(case(workers=1))
    jobs.error = None
    assert captured.of(case(workers=2)).facts.replica_batch == 4
    with pytest.raises(CaseError, match="4 examples only"):
        captured.of(case(workers=1))
    assert jobs.asked == ["capture", "capture"]


def test_a_lost_worker_is_no_reason_to_try_another_batch(tmp_path: Path) -> None:
    jobs = Jobs(error=CaseError("worker-lost", "no answer", stage="capture"))
    captured = captures(tmp_path, jobs)
    for workers in (1, 2):
        with pytest.raises(CaseError, match="no answer"):
            captured.of(case(workers=workers))
    assert jobs.asked == ["capture", "capture"]


def test_a_step_of_fixed_batch_fits_the_micro_batches_that_have_it(tmp_path: Path) -> None:
    jobs = Jobs(replica_batch=2)
    captured = captures(tmp_path, jobs)
    first = captured.of(case(workers=4))
    assert captured.of(case(workers=2, accumulate=2)) is first
    assert captured.of(case(workers=2)) is not first
    assert topology_of_case(case(accumulate=2), first).n_shards == 4


def test_statistics_of_the_whole_batch_have_a_reference_of_their_own(tmp_path: Path) -> None:
    captured = captures(tmp_path, Jobs())
    synced = replace(case(), strategy=StrategyRef(name="ps", params={"sync_batch_norm": True}))
    plain, joint = (topology_of_case(one, captured.of(one)) for one in (case(), synced))
    assert joint == replace(plain, global_statistics=True)
    alone = replace(synced, shape=ClusterShape(workers=1))
    assert not topology_of_case(alone, captured.of(alone)).global_statistics


@pytest.mark.parametrize(("kind", "n_asked"), [(USER_ERROR, 1), ("worker-died", 2)])
def test_a_users_mistake_is_tried_once_and_any_other_twice(tmp_path: Path, kind: str, n_asked: int) -> None:
    jobs = Jobs(error=CaseError(kind, "it cannot be", stage="capture"))
    captured = captures(tmp_path, jobs)
    for _ in range(3):
        with pytest.raises(CaseError, match="it cannot be"):
            captured.of(case())
    assert len(jobs.asked) == n_asked


def test_a_capture_is_waited_for_as_long_as_asked(tmp_path: Path) -> None:
    jobs = Jobs()
    captured = captures(tmp_path, jobs, Timeouts(factor=4.0))
    captured.batches(case(), captured.of(case()))
    assert jobs.limits_s == [4 * CAPTURE_S] * 2


def on_tpus(strategy: str) -> Case:
    return replace(
        case(strategy=strategy), shape=ClusterShape(workers=1, replicas_per_worker=4, device="tpu")
    )


def test_strategies_with_a_form_for_tpus_get_a_topology_of_them(tmp_path: Path) -> None:
    captured = captures(tmp_path, Jobs())
    for strategy in ("tf-tpu", "tpu-replicate"):
        one = on_tpus(strategy)
        assert topology_of_case(one, captured.of(one)).device == "tpu"


@pytest.mark.parametrize("strategy", ["single", "all-reduce", "sharded-update", "tf-mirrored"])
def test_a_strategy_without_a_form_for_tpus_is_refused_by_name(tmp_path: Path, strategy: str) -> None:
    result, one = captures(tmp_path, Jobs()), on_tpus(strategy)
    with pytest.raises(
        CaseError,
        match=f"strategy '{strategy}': has a form for .*got device tpu; use tpu-replicate or tf-tpu",
    ) as raised:
        topology_of_case(one, result.of(one))
    assert raised.value.kind == UNSUPPORTED


def test_devices_of_tpus_have_a_capture_of_their_own_whose_shapes_are_known(tmp_path: Path) -> None:
    jobs = Jobs()
    captured = captures(tmp_path, jobs)
    on_processors = captured.of(case(workers=4))
    one = on_tpus("tpu-replicate")
    assert captured.of(one) is not on_processors
    assert captured.of(on_tpus("tf-tpu")) is captured.of(one)
    assert jobs.compilable == [False, True]
    # Whether shards mean what the batch means is asked of one that takes them all.
    captured.separability(one, topology_of_case(one, captured.of(one)))
    assert jobs.looked_at == [on_processors.folder]


def test_several_hosts_of_tpus_are_planned_and_not_run(tmp_path: Path) -> None:
    result, one = captures(tmp_path, Jobs()), on_tpus("tpu-replicate")
    assert planned_to_run(result, one)[1].device == "tpu"
    shape = ClusterShape(workers=2, replicas_per_worker=4, device="tpu")
    two = replace(one, shape=shape)
    assert planned(result, two)[1].device == "tpu"
    with pytest.raises(CaseError, match=r"is run on the tpu devices of one host, got 2 workers") as raised:
        planned_to_run(result, two)
    assert (raised.value.kind, raised.value.stage) == (UNSUPPORTED, "plan")
    assert "\n" not in raised.value.message


def test_cores_that_are_emulated_are_those_of_processors(tmp_path: Path) -> None:
    shape = ClusterShape(workers=1, replicas_per_worker=4, device="tpu-emulated")
    result, one = captures(tmp_path, Jobs()), replace(case(strategy="tpu-replicate"), shape=shape)
    assert planned_to_run(result, one)[1].device == "cpu"


def slow_captures(monkeypatch: pytest.MonkeyPatch, job_s: float) -> tuple[Captures, Jobs]:
    """Captures whose jobs take so many seconds each."""
    now_s, jobs = [0.0], Jobs()

    def slow(job: Any, args: tuple[Any, ...], *, timeout_s: float, stage: str) -> Any:
        now_s[0] += job_s
        return jobs(job, args, timeout_s=timeout_s, stage=stage)

    monkeypatch.setattr("harness.verification.captures.time.monotonic", lambda: now_s[0])
    return Captures(Path("c"), slow, seed=0, n_batches=4, n_least=4), jobs


def test_what_comes_before_workers_shares_one_limit_by_topology(monkeypatch: pytest.MonkeyPatch) -> None:
    captures, jobs = slow_captures(monkeypatch, 700.0)
    result, limit_s = captures.of(case()), USUAL.prepare_s
    for n_workers in (2, 4):
        one = case(workers=n_workers)
        topology = topology_of_case(one, result)
        captures.separability(one, topology)
        captures.reference(one, result, topology, 4)
        *_, first_s, second_s = jobs.limits_s
        assert first_s == pytest.approx(USUAL.command_s, abs=1)
        assert second_s == pytest.approx(limit_s - 1400.0, abs=1)
        assert captures.seconds(one, result) == (700.0, 1400.0)


def test_checks_of_other_strategies_shorten_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep of many strategies over one workload takes hours of checks in float64."""
    captures, jobs = slow_captures(monkeypatch, 300.0)
    for strategy in ("ps", "all-reduce", "ps-load-balancing", "local-sgd", "sharded-ps", "parallax"):
        capture, plan = planned(captures, case(strategy=strategy))
        captures.verdict_in_float64(case(strategy=strategy), capture, plan, 4)
        assert jobs.limits_s[-1] == pytest.approx(USUAL.command_s, abs=1)
    assert captures.seconds(case(), capture) == (300.0, 0.0)


def test_more_references_take_no_time_from_checks_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    captures, jobs = slow_captures(monkeypatch, 700.0)
    capture, topology = captures.of(case()), topology_of_case(case(), captures.of(case()))
    for _ in range(2):
        captures.more_tolerances(case(), capture, topology, 4)
    assert jobs.asked.count("more_tolerances") == 1
    captures.reference(case(), capture, topology, 4, float64=True)
    assert jobs.limits_s[-1] == pytest.approx(USUAL.command_s, abs=1)


@pytest.mark.parametrize(("n_gpus", "shares"), [(1, True), (2, False)])
def test_a_plan_for_gpus_that_replicas_share_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_gpus: int, shares: bool
) -> None:
    gpus = tuple(Gpu(uuid=f"GPU-{k}", name="g") for k in range(n_gpus))
    monkeypatch.setattr(accelerators, "_gpus_here", lambda: gpus)
    sharing = ClusterShape(workers=2, device="gpu", share_gpus=True)
    result, other_case = captures(tmp_path, Jobs()), replace(case(strategy="all-reduce"), shape=sharing)
    assert planned_to_run(result, other_case)[1].shares_devices is shares
    by_themselves = replace(other_case, shape=replace(sharing, share_gpus=False))
    assert not planned_to_run(result, by_themselves)[1].shares_devices
