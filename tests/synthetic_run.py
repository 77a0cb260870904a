"""A run folder as `stratbench run` writes it, with everything a report has to cope with."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from harness.records.conditions import (
    AS_WRITTEN,
    Machine,
    Method,
    ModelSize,
    Provenance,
    Repository,
    TimedUnit,
)
from harness.records.costs import Energy, GpuUse, Link, MeasuredLink, TracedTimes
from harness.records.outcome import (
    Aggregated,
    Equivalence,
    Evaluation,
    Failure,
    Resharding,
    Rounds,
    StepSeconds,
)
from harness.records.predictions import PredictedLimits, StoredPrediction, write_predictions
from harness.records.record import Record, StrategyClass
from harness.records.run_folder import RunFolder, open_run
from harness.records.steps_file import Steps

SCRIPT = "<script>document.title='INERT-MARKER'</script>"
FORMULA = "=cmd()|'/C calc'!A0"
MARKDOWN = "a|b `c` <b>*d*</b> [e](http://evil.example)"
ONERROR = "<img src=x onerror=\"document.title='INERT-MARKER'\"> --></script>\nsecond line"
N_STEPS = 50
N_WARMUP = 8
N_ROUNDS = 10


@dataclass(frozen=True, kw_only=True)
class Case:
    """One strategy on one workload, as it should come out."""

    workload: str
    strategy: str
    p50_s: float = 0.02
    noise: float = 0.01
    class_: StrategyClass = "exact"
    params: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    batch_size: int | None = 64
    workers: int = 2
    replicas: int = 1
    batch_rule: str = "global"
    payload: float | None = 1_000_000.0
    payload_is_bound: bool | None = False
    overhead: float = 1.006
    exposed_s: float | None = 0.004
    equivalent: bool | None = True
    stall_s: float = 0.0
    interface: bool = True
    traced: bool = True
    is_twin: bool = False
    cpu_s: float = 0.01
    package_j: float | None = None
    gpus: GpuUse | None = None
    hosts: tuple[int, ...] | None = None
    resent: float | None = None
    gradients: int | None = None
    price_per_hour: float | None = None
    git_sha: str = "0123456789abcdef0123456789abcdef01234567"
    # Rates of the workers' links, asked for and measured.
    link_mbit: tuple[float, ...] = ()
    precision: str = AS_WRITTEN
    xla: bool = False
    tf32: bool | None = None
    sparse_duplicates: str | None = None
    resharding: Resharding | None = None
    scenario: str = ""
    replicas_on_gpus: tuple[int, ...] = ()
    timed_unit: TimedUnit = "step"
    faults: tuple[str, ...] = ()
    aggregation: Aggregated | None = None
    # Predicted step of the case.
    predicted_s: float | None = None
    evaluation: Evaluation | None = None
    device: str = "cpu"
    cores: float | None = 1
    memory_bytes: int | None = None
    image_digest: str | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    # Of the workload's own file: its hash, the repository that holds it, and what its model is.
    file_hash: str | None = None
    repository: Repository | None = None
    model: ModelSize | None = None
    workload_params: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    # Tells cases apart that are alike in all that a record has of them.
    case_number: int = 0
    # By repeat: what went wrong there.
    problems: Mapping[int, tuple[str, Failure | None]] = field(default_factory=dict)


DIED = Failure(type="worker-died", message="worker 1 was killed by signal 9 (out of memory?)", stage="run")
HOSTILE = Failure(type="user-error", message=ONERROR, stage="capture")
TOO_FAST = Failure(
    type="above-link-ceiling", message="2.1 GB/s over a link measured at 0.9 GB/s", stage="collect"
)
NO_GPU = Failure(type="missing-device", message="needs a GPU, got none; use device: cpu", stage="provision")

SINGLE = {"strategy": "single", "workers": 1, "payload": 0.0, "exposed_s": None}
NONE = {"strategy": "none", "class_": "control", "payload": 0.0, "exposed_s": None, "equivalent": False}


def full_cases() -> list[Case]:
    """A winner, a baseline that wins, a tie, every kind of problem, and nasty names."""
    wide = [
        Case(workload="wide-mlp", p50_s=0.0610, **SINGLE),
        Case(workload="wide-mlp", p50_s=0.0205, **NONE),
        Case(workload="wide-mlp", strategy="all-reduce", p50_s=0.0362, payload=33.6e6, exposed_s=0.0157),
        Case(workload="wide-mlp", strategy="ps", p50_s=0.0520, payload=33.6e6, exposed_s=0.0315, stall_s=1.2),
        Case(
            workload="wide-mlp",
            strategy="ps-load-balancing",
            p50_s=0.0475,
            payload=33.6e6,
            exposed_s=0.027,
            overhead=1.18,
        ),
        Case(
            workload="wide-mlp",
            strategy="broken-reduce",
            p50_s=0.0301,
            payload=16.8e6,
            exposed_s=0.0096,
            equivalent=False,
        ),
        Case(
            workload="wide-mlp",
            strategy="ps",
            params={"staleness": 2, "sync": True},
            class_="statistical",
            p50_s=0.0333,
            payload=33.6e6,
            exposed_s=0.0128,
            equivalent=None,
        ),
        Case(
            workload="wide-mlp",
            strategy="sharded-ps",
            p50_s=0.0100,
            payload=33.6e6,
            problems={1: ("implausible", TOO_FAST)},
        ),
    ]
    digits = [
        Case(workload="digits-cnn", p50_s=0.0123, **SINGLE),
        Case(workload="digits-cnn", p50_s=0.0082, **NONE),
        Case(workload="digits-cnn", strategy="all-reduce", p50_s=0.0171, payload=412_000.0, exposed_s=0.0089),
        Case(
            workload="digits-cnn",
            strategy="ps",
            p50_s=0.0193,
            payload=412_000.0,
            exposed_s=0.0111,
            interface=False,
        ),
    ]
    words = [
        Case(workload="word-lm", p50_s=0.180, **SINGLE),
        Case(workload="word-lm", p50_s=0.101, noise=0.03, **NONE),
        Case(
            workload="word-lm", strategy="all-reduce", p50_s=0.121, noise=0.04, payload=5.1e6, exposed_s=0.02
        ),
        Case(workload="word-lm", strategy="ps", p50_s=0.119, noise=0.04, payload=2.3e6, exposed_s=0.018),
        Case(
            workload="word-lm",
            strategy="ps-load-balancing",
            p50_s=0.128,
            payload=2.3e6,
            problems={1: ("failed", DIED)},
        ),
        Case(workload="word-lm", strategy="parallax", problems=dict.fromkeys(range(3), ("skipped", NO_GPU))),
    ]
    nasty = [
        Case(workload=SCRIPT, **SINGLE, p50_s=0.011),
        Case(
            workload=SCRIPT,
            strategy=FORMULA,
            p50_s=0.008,
            problems={1: ("failed", HOSTILE), 2: ("failed", HOSTILE)},
        ),
        Case(workload=SCRIPT, strategy=MARKDOWN, p50_s=0.009, equivalent=None),
        Case(workload=SCRIPT, strategy=SCRIPT, problems=dict.fromkeys(range(3), ("failed", HOSTILE))),
    ]
    return [*wide, *digits, *words, *nasty]


def write_run(
    path: Path,
    cases: list[Case],
    *,
    n_repeats: int = 3,
    seed: int = 7,
    baseline: str = "single",
    minutes: tuple[float, float] | None = None,
    experiment_name: str = "synthetic",
) -> Path:
    """Write a run folder through the harness's own store.

    Args:
        path: the run folder, absent or empty.
        cases: cases of the run.
        n_repeats: repeats of every case.
        seed: seed of the noise.
        baseline: `compare.baseline` of the experiment.
        minutes: range of rounds' slowdown factors; None for cases without interleaved windows.
        experiment_name: name in the experiment's file.
    """
    rng = np.random.default_rng(seed)
    images = [digest for digest in dict.fromkeys(case.image_digest for case in cases) if digest]
    experiment = {
        "name": experiment_name,
        "workloads": list(dict.fromkeys(case.workload for case in cases)),
        "strategies": list(dict.fromkeys(case.strategy for case in cases)),
        "compare": {"baseline": baseline},
        **({"cluster": {"image": images}} if len(images) > 1 else {}),
    }
    environment = {
        "python": "3.11.7",
        "hostname_hash": "5ab1",
        "note": SCRIPT,
        "env": {"OMP_NUM_THREADS": "1"},
    }
    with open_run(path, experiment=experiment, environment=environment) as folder:
        order = 0
        for repeat in range(n_repeats):
            slow = None if minutes is None else rng.uniform(*minutes, size=N_ROUNDS)
            for i in rng.permutation(len(cases)):
                _append(folder, cases[i], repeat=repeat, order=order, rng=rng, slow=slow)
                order += 1
    steps_s = {_case_id(case): (case, case.predicted_s) for case in cases if case.predicted_s is not None}
    if steps_s:
        write_predictions(path, {name: _prediction(case, step_s) for name, (case, step_s) in steps_s.items()})
    return path


def _case_id(case: Case) -> str:
    computed = f"{case.precision}-{case.xla}" if case.precision != AS_WRITTEN or case.xla else ""
    label = f"{case.workload}-{case.strategy}-{sorted(case.params.items())}-{case.workers}{computed}"
    label += case.scenario
    label += "" if case.tf32 is None else f"tf32-{case.tf32}"
    # What most runs have one of, so that names of their cases stay.
    if case.link_mbit or case.replicas != 1 or case.batch_size != 64:
        label += f"{case.link_mbit}-{case.replicas}-{case.batch_size}"
    if (case.cores, case.memory_bytes, case.image_digest, case.case_number) != (1, None, None, 0):
        label += f"{case.cores}-{case.memory_bytes}-{case.image_digest}-{case.case_number}"
    if case.workload_params:
        label += str(sorted(case.workload_params.items()))
    return f"case-{hashlib.sha256(label.encode()).hexdigest()[:8]}"


def _prediction(case: Case, step_s: float) -> StoredPrediction:
    """A prediction with an interval from a fifth below to a quarter above."""
    batch_size = case.batch_size or 64
    return StoredPrediction(
        workload=case.workload,
        strategy=case.strategy,
        strategy_params=case.params,
        label=case.strategy,
        workers=case.workers,
        replicas=case.replicas,
        batch_size=batch_size,
        link_mbit=case.link_mbit[0] if case.link_mbit else None,
        step_s=step_s,
        interval=PredictedLimits(low=0.8 * step_s, high=1.25 * step_s),
        examples_per_s=batch_size / step_s,
        payload_bytes_per_step=case.payload or 0.0,
        memory_bytes=1e6,
        limited_by="computing",
        extrapolated=("examples per worker",) if case.workers > 2 else (),
    )


def _append(
    folder: RunFolder,
    case: Case,
    *,
    repeat: int,
    order: int,
    rng: np.random.Generator,
    slow: np.ndarray | None,
) -> None:
    status, error = case.problems.get(repeat, ("ok", None))
    record = Record(
        run=folder.run,
        case=_case_id(case),
        repeat=repeat,
        order=order,
        workload=case.workload,
        workload_params=case.workload_params,
        strategy=case.strategy,
        strategy_params=case.params,
        strategy_class=case.class_,
        is_twin=case.is_twin,
        price_per_hour=case.price_per_hour,
        provider="local",
        device=case.device,
        workers=case.workers,
        replicas=case.replicas,
        batch_size=case.batch_size,
        status=status,
        error=error,
        experiment="synthetic",
        spec_hash="9f" * 32,
        method=Method(
            seed=0,
            steps=N_STEPS,
            warmup_rule="auto",
            interleave=True,
            batch_rule=case.batch_rule,
            cores_per_worker=case.cores,
            memory_per_worker_bytes=case.memory_bytes,
            precision=case.precision,
            xla=case.xla,
            tf32=case.tf32,
            sparse_duplicates=case.sparse_duplicates,
            scenario=case.scenario,
            replicas_on_gpus=case.replicas_on_gpus,
            timed_unit=case.timed_unit,
            faults=case.faults,
        ),
        machine=Machine(
            cpu_model="Example CPU @ 2.60GHz", n_cores=2, memory_bytes=8 * 2**30, architecture="x86_64"
        ),
        provenance=Provenance(
            git_sha=case.git_sha,
            git_dirty=False,
            image_digest=case.image_digest,
            versions={"tensorflow": "2.21.0", "keras": "3.12.0", "ray": "2.52.0", "stratbench": "0.1.0"},
            workload=case.repository,
            files={
                **dict.fromkeys(case.files, "0" * 64),
                **({} if case.file_hash is None else {case.workload: case.file_hash}),
            },
        ),
        link=_link(case),
        resharding=case.resharding,
        aggregation=case.aggregation,
        evaluation=case.evaluation,
        notes=case.notes,
        warnings=case.warnings,
    )
    if status in ("ok", "implausible"):
        record = _measured(record, case, folder, rng)
    if slow is not None and record.step_s is not None and record.step_s.p50 is not None:
        steps_s = record.step_s.p50 * slow * np.exp(0.01 * rng.standard_normal(len(slow)))
        p50_s = float(np.median(steps_s))
        rounds = Rounds(
            block=f"block{repeat}", n_steps=5, n_lead=1, n_made=N_STEPS, step_s=tuple(steps_s.tolist())
        )
        record = dataclasses.replace(
            record, rounds=rounds, step_s=dataclasses.replace(record.step_s, p50=p50_s)
        )
    folder.append(record)


def _link(case: Case) -> Link:
    if not case.link_mbit:
        return Link()
    workers = tuple(MeasuredLink(requested_mbit=m, sent_mbit=m, received_mbit=m) for m in case.link_mbit)
    return Link(requested_mbit=case.link_mbit[0], measured_mbit=min(case.link_mbit), workers=workers)


def _measured(record: Record, case: Case, folder: RunFolder, rng: np.random.Generator) -> Record:
    middle = case.p50_s * float(np.exp(case.noise * rng.standard_normal()))
    step_s = middle * np.exp(0.04 * rng.standard_normal((case.workers, N_WARMUP + N_STEPS)))
    step_s *= 1 + 0.2 * (rng.random(step_s.shape) > 0.96)
    step_s[:, :N_WARMUP] *= np.geomspace(6.0, 1.1, N_WARMUP)
    step_s[:, -1] += case.stall_s
    _write_steps(folder, record, step_s)
    timed = step_s[:, N_WARMUP:].max(axis=0)
    timed *= middle / np.median(timed)
    sent = None if case.payload is None else case.payload * case.overhead
    matrix = None
    if sent is not None:
        n_links = max(1, case.workers * (case.workers - 1))
        matrix = tuple(
            tuple(0.0 if i == j else sent / n_links for j in range(case.workers)) for i in range(case.workers)
        )
    return dataclasses.replace(
        record,
        examples_per_s=None if case.batch_size is None else case.batch_size * N_STEPS / float(timed.sum()),
        step_s=StepSeconds(
            n=N_STEPS,
            mean=float(timed.mean()),
            p50=float(np.median(timed)),
            p90=float(np.quantile(timed, 0.9)),
            p99=float(np.quantile(timed, 0.99)),
        ),
        warmup_steps=N_WARMUP,
        payload_bytes_per_step=case.payload,
        payload_is_bound=case.payload_is_bound,
        tcp_bytes_per_step=sent,
        interface_bytes_per_step=None if sent is None or not case.interface else sent * 1.02,
        tcp_matrix=matrix,
        hosts=case.hosts,
        resent_bytes_per_step=case.resent,
        gradient_bytes=case.gradients,
        model=case.model,
        exposed_comm_s=None
        if case.exposed_s is None
        else case.exposed_s * float(1 + 0.05 * rng.standard_normal()),
        traced_step=_traced(case) if case.traced else None,
        cpu_s_per_step=(case.cpu_s,) * case.workers,
        gpus=case.gpus,
        energy=Energy(package_j_per_step=case.package_j),
        transform_s=0.08,
        nodes_before=812,
        nodes_after=940,
        peak_rss_bytes=(610_000_000,) * case.workers,
        loss=(2.31, 1.2, float(0.41 + 0.01 * rng.standard_normal())),
        equivalence=_equivalence(case),
    )


def _traced(case: Case) -> TracedTimes:
    """The first worker computes half of the step, and each further one a tenth less."""
    step_s = [case.p50_s] * case.workers
    compute_s = [case.p50_s * (0.5 - 0.1 * k) for k in range(case.workers)]
    return TracedTimes(
        step_s=tuple(step_s),
        compute_s=tuple(compute_s),
        transfer_s=tuple(0.2 * s for s in step_s),
        wait_s=tuple(0.1 * s for s in step_s),
        receiving_s=tuple(0.3 * s for s in step_s),
        received_bytes=(1000,) * case.workers,
        n_transfers=(7,) * case.workers,
    )


def _write_steps(folder: RunFolder, record: Record, step_s: np.ndarray) -> None:
    n_workers, n_steps = step_s.shape
    ends = np.cumsum(step_s, axis=1)
    folder.write_steps(
        record.case,
        record.repeat,
        Steps(
            worker=np.repeat(np.arange(n_workers, dtype=np.int32), n_steps),
            step=np.tile(np.arange(n_steps, dtype=np.int32), n_workers),
            start_s=(ends - step_s).ravel(),
            end_s=ends.ravel(),
            loss=np.full(n_workers * n_steps, np.nan),
            warmup=np.tile(np.arange(n_steps) < N_WARMUP, n_workers),
            window=np.tile(np.where(np.arange(n_steps) < N_WARMUP, -1, 0).astype(np.int32), n_workers),
        ),
    )


def _equivalence(case: Case) -> Equivalence:
    if case.equivalent is None or case.strategy == "single":
        return Equivalence(checked=False)
    return Equivalence(
        checked=True,
        equivalent=case.equivalent,
        max_update_error=3.2e-7 if case.equivalent else 0.41,
        noise_floor=2.1e-7,
        tolerance=3.3e-5,
        checked_in_repeat=0,
    )
