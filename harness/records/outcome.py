"""Outcome of a repeat: failure, step times, equivalence, rounds, stability, robustness, resharding."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

CheckedType: TypeAlias = Literal["model", "float64"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Failure of a case: a kebab-case type, a message of one line, and the stage."""

    type: str
    message: str
    stage: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSeconds:
    """Distribution of step times in all timed windows; `n` steps, the rest in seconds.

    It is that of the mean steps of whole periods or windows, if these are the method's timed unit.
    """

    n: int
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Equivalence:
    """Outcome of the check against the single-device reference, made once per case.

    Attributes:
        equivalent: None if too little of the model can be judged. reason: reason why it is not True.
        max_update_error, noise_floor, tolerance: figures of the judged variable nearest to its limit,
            relative to its update.
        undecidable: names of variables that cannot be judged, because of rounding or a missing update.
        dtype: `model` if the workers' own steps were compared; `float64` if rounding hid these, and the
            plan's steps were repeated in float64, all workers in one process.
        within_bound: True if a compressed strategy, which need not be equivalent, lost no more than its
            compressors' bounds.
        separable: True if the mean over shards equals the whole batch's step. separability: reason.
        captured: True if the captured step computes the same as the workload's own step in plain TensorFlow;
            None if unknown. If False, `equivalent` is False, too. capture: reason.
    """

    checked: bool
    equivalent: bool | None = None
    within_bound: bool | None = None
    reason: str | None = None
    max_update_error: float | None = None
    noise_floor: float | None = None
    tolerance: float | None = None
    undecidable: tuple[str, ...] = ()
    dtype: CheckedType = "model"
    separable: bool | None = None
    separability: str | None = None
    captured: bool | None = None
    capture: str | None = None
    checked_in_repeat: int | None = None

    @property
    def wrong(self) -> bool:
        return self.equivalent is False or self.within_bound is False


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedCheckpoint:
    """Checkpoint that a repeat began with, and the one it saved; steps count from the first of such runs.

    Attributes:
        saved: path relative to the run folder.
    """

    saved: str | None = None
    saved_step: int | None = None
    restored: str | None = None
    restored_step: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Rounds:
    """Windows of a repeat; the cases of a block take turns.

    Attributes:
        block: number of the block; windows of equal number in its records are one round.
        n_steps: counted steps of each window. n_lead: uncounted steps before them. n_made: all steps after
            the warm-up.
        step_s: median step of each window, see `StepSeconds`.
        baseline: case of the baseline. baseline_step_s: its medians in the same rounds, as far as it took
            part; its own record may have others.
        first_worker: number of the cluster's worker that ran the case's first worker.
        baseline_first_worker: the same for the baseline.
    """

    block: str
    n_steps: int
    n_lead: int
    n_made: int
    step_s: tuple[float, ...]
    first_worker: int = 0
    baseline: str | None = None
    baseline_step_s: tuple[float, ...] | None = None
    baseline_first_worker: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Aggregated:
    """Combination of n workers' gradients by a rule for f faulty ones.

    Attributes:
        n_faulty: number of workers with injected faults.
        rule_s: seconds of one aggregation. mean_s: seconds of a plain mean of the same vectors. Both None if
            not timed.
        n_steps: steps since the worker began, warm-up included.
        chosen: steps to whose result each worker contributed.
        not_finite: steps in which each worker sent non-finite values.
    """

    rule: str
    n: int
    f: int
    n_faulty: int = 0
    rule_s: float | None = None
    mean_s: float | None = None
    n_steps: int | None = None
    chosen: tuple[int, ...] | None = None
    not_finite: tuple[int, ...] | None = None
    selects: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Metrics of the model after a number of steps, from its workload; None if a metric is not a number."""

    step: int
    metrics: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaResharding:
    """Counts of one replica since its variables were loaded.

    Attributes:
        n_loops: runs of the host loop.
        reshards: number of iterations that requested their program's layout.
        shards, unshards: numbers of actual partitions of the variables, and of reassemblies.
        sent_bytes: bytes sent to reassemble variables.
        whole_bytes, kept_bytes: bytes of the partitioned variables: whole, and as parts within a loop.
    """

    n_loops: int
    reshards: int
    shards: int
    unshards: int
    sent_bytes: int
    whole_bytes: int
    kept_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Resharding:
    """Resharding of a case, averaged over runs of its host loop.

    Attributes:
        reshards, shards, unshards: counts of a replica. sent_bytes: bytes of all replicas together.
        whole_bytes, kept_bytes: size of the partitioned variables, whole and within a loop, on the replica
            with the most.
    """

    n_loops: int
    reshards: float
    shards: float
    unshards: float
    sent_bytes: float
    whole_bytes: int
    kept_bytes: int

    @classmethod
    def of(cls, replicas: Sequence[ReplicaResharding]) -> Resharding | None:
        """Mean over replicas; None if none reshards or none has run a loop."""
        n_loops = sum(replica.n_loops for replica in replicas)
        if not n_loops:
            return None
        return cls(
            n_loops=max(replica.n_loops for replica in replicas),
            reshards=sum(replica.reshards for replica in replicas) / n_loops,
            shards=sum(replica.shards for replica in replicas) / n_loops,
            unshards=sum(replica.unshards for replica in replicas) / n_loops,
            sent_bytes=sum(replica.sent_bytes for replica in replicas) * len(replicas) / n_loops,
            whole_bytes=max(replica.whole_bytes for replica in replicas),
            kept_bytes=max(replica.kept_bytes for replica in replicas),
        )


Grade = Literal["steady", "unsteady", "disturbed"]
# Share of the cores' or a GPU's time used by others from which a repeat is unsteady, or disturbed.
UNSTEADY_SHARE, DISTURBED_SHARE = 0.05, 0.20
UNSTEADY_DRIFT, DISTURBED_DRIFT = 0.10, 0.30
_LEAST_ROUNDS = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Stability:
    """Disturbance of a repeat's windows; None for unknown figures.

    Shares are of the workers' core time in the counted windows, and of the most disturbed GPU's time.

    Attributes:
        foreign_cpu: share used by other programs, without the kernel's interrupts. foreign_cpu_most: share in
            the most disturbed window.
        stolen_cpu: share given to other virtual machines. throttled_cpu: share withheld by control groups.
        n_hot: number of slowdowns of cores for heat.
        drift: relative growth of steps from the first third of the rounds to the last.
        grade: summary of these figures.
        foreign_gpu: share in which kernels of other programs ran. n_foreign_gpu: most programs seen at once.
        throttled_gpu: share in which its clocks were held down. gpu_slowdowns: causes.
        gpu_sm_mhz, gpu_memory_mhz: median clocks at the ends of windows.
        why_no_gpu: field that is None although there are GPUs → reason.
    """

    foreign_cpu: float | None = None
    foreign_cpu_most: float | None = None
    stolen_cpu: float | None = None
    throttled_cpu: float | None = None
    n_hot: int | None = None
    drift: float | None = None
    grade: Grade | None = None
    foreign_gpu: float | None = None
    n_foreign_gpu: int | None = None
    throttled_gpu: float | None = None
    gpu_slowdowns: tuple[str, ...] = ()
    gpu_sm_mhz: float | None = None
    gpu_memory_mhz: float | None = None
    why_no_gpu: Mapping[str, str] = field(default_factory=dict)


def grade_of(stability: Stability) -> Grade | None:
    """Grade of a repeat's disturbances; None if nothing is known of them."""
    of_gpus = (stability.foreign_gpu, stability.throttled_gpu)
    shares = (stability.foreign_cpu, stability.stolen_cpu, stability.throttled_cpu, *of_gpus)
    if all(figure is None for figure in (*shares, stability.drift, stability.n_hot, stability.n_foreign_gpu)):
        return None
    worst = max((share for share in shares if share is not None), default=0.0)
    drift = abs(stability.drift or 0.0)
    if worst >= DISTURBED_SHARE or drift >= DISTURBED_DRIFT or stability.n_hot:
        return "disturbed"
    # A program on the same GPU may use any part of it if the driver does not report the share.
    is_unknown = bool(stability.n_foreign_gpu) and stability.foreign_gpu is None
    is_unsteady = worst >= UNSTEADY_SHARE or drift >= UNSTEADY_DRIFT or is_unknown
    return "unsteady" if is_unsteady else "steady"


def drift(step_s: Sequence[float]) -> float | None:
    """Relative growth of steps from the first rounds to the last; None with few rounds.

    Args:
        step_s: median step of each round, in their order, in seconds.
    """
    n = len(step_s) // 3
    if len(step_s) < _LEAST_ROUNDS:
        return None
    return statistics.median(step_s[-n:]) / statistics.median(step_s[:n]) - 1.0
