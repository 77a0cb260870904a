"""Outcome of a repeat: failure, step times, equivalence, rounds, stability, robustness, resharding."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

CheckedType: TypeAlias = Literal["model", "float64"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Failure of a case: a kebab-case type, one line, and the stage it happened in."""

    type: str
    message: str
    stage: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSeconds:
    """Distribution of step times in all timed windows; `n` steps, the rest in seconds."""

    n: int
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Equivalence:
    """Outcome of the check against the single-device reference, made once per case.

    `equivalent` is null where too little of the model can be judged; `reason` says why it is not true.
    `max_update_error`, `noise_floor` and `tolerance` are those of the decidable variable nearest to its
    limit, relative to its update. `undecidable` names the variables of which rounding alone, or an update
    that never came, leaves nothing to compare.
    `dtype` is `model` where the workers' own steps were compared, and `float64` where rounding hid what these
    compute and the plan's steps were made again in float64, all workers in one process.
    `within_bound`: a compressed strategy, which need not be equivalent, lost no
    more than its compressors state.
    `separable` says whether shards mean what the step means on the whole batch, and `separability` why.
    `captured` says whether the captured step computes what the workload's own step does as plain TensorFlow,
    null where that is not known, and `capture` why. Where it does not, `equivalent` is false.
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
    """Checkpoint that a repeat began with, and the one it saved; steps count from the first of all such runs.

    `saved` is relative to the run folder.
    """

    saved: str | None = None
    saved_step: int | None = None
    restored: str | None = None
    restored_step: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Rounds:
    """Windows of a repeat, which the cases of a block took in turn.

    `block` is equal for the records whose windows of one number belong to one round. `n_steps` are counted in
    each window, after `n_lead` that are not; `n_made` are all steps after the warm-up. `step_s` holds the
    median step of each window, `baseline_step_s` those of the baseline's case, `baseline`, in the same
    rounds, as far as it took part; its own record may have other ones. `first_worker` is the one of the
    site's workers that the case's first ran on, `baseline_first_worker` the same of the baseline's.
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
    """Gradients of n workers combined by a rule for f faulty ones.

    `n_faulty`: workers that were given faults. `rule_s` is what one aggregation takes by itself, `mean_s` a
    plain mean of the same vectors; None where they were not timed. `n_steps` are all since the worker began,
    warm-up included, `chosen` and `not_finite` the steps of these in whose result each worker had a part, and
    in which what it sent was not finite.
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
    """Metrics of the model after so many steps, as its workload reports them; None is no number."""

    step: int
    metrics: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaResharding:
    """Counts of one replica since its variables were loaded.

    Attributes:
        n_loops: runs of the host loop.
        reshards: times that an iteration asked for the format of its program.
        shards, unshards: times that variables were really taken apart, and put together.
        sent_bytes: for putting them together.
        whole_bytes, kept_bytes: of the partitioned variables: whole, and as parts within a loop.
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
    """Resharding of a case, for one run of its host loop on average.

    `reshards`, `shards` and `unshards` are those of a replica, `sent_bytes` those of all together.
    `whole_bytes` and `kept_bytes`, of the replica with the most, are the size of partitioned variables
    whole and within a loop.
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
        """The mean over replicas, None where none reshards or none has run a loop."""
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
# Shares of the cores' or a GPU's time used by others from which a repeat is unsteady, and disturbed.
UNSTEADY_SHARE, DISTURBED_SHARE = 0.05, 0.20
UNSTEADY_DRIFT, DISTURBED_DRIFT = 0.10, 0.30
_LEAST_ROUNDS = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Stability:
    """Disturbance of a repeat's windows; None for figures that are not known.

    Shares of the workers' core time in the counted windows: `foreign_cpu` was used by other programs, the
    kernel's handling of interrupts left out; `stolen_cpu` was given to other virtual machines;
    `throttled_cpu` was withheld by the limit of a control group. `foreign_cpu_most` is that of the window
    with most of it. `n_hot` counts how often cores were slowed down for their heat. `drift` is by how much
    steps of the last third of the rounds are longer than those of the first. `grade` sums that up.

    The most disturbed GPU counts: `foreign_gpu` is the share of the time in which kernels of other
    programs ran, `n_foreign_gpu` the most programs of others that were seen on it; `throttled_gpu` the share
    in which its clocks were held down, `gpu_slowdowns` by what. Clocks are medians at the ends of windows.
    `why_no_gpu`: field that is None although there are GPUs → reason.
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
    """Grade of a repeat's levels; None where nothing is known of disturbances."""
    of_gpus = (stability.foreign_gpu, stability.throttled_gpu)
    shares = (stability.foreign_cpu, stability.stolen_cpu, stability.throttled_cpu, *of_gpus)
    if all(figure is None for figure in (*shares, stability.drift, stability.n_hot, stability.n_foreign_gpu)):
        return None
    worst = max((share for share in shares if share is not None), default=0.0)
    drift = abs(stability.drift or 0.0)
    if worst >= DISTURBED_SHARE or drift >= DISTURBED_DRIFT or stability.n_hot:
        return "disturbed"
    # A program on the same GPU may take any part of it where the driver does not say which.
    is_unknown = bool(stability.n_foreign_gpu) and stability.foreign_gpu is None
    is_unsteady = worst >= UNSTEADY_SHARE or drift >= UNSTEADY_DRIFT or is_unknown
    return "unsteady" if is_unsteady else "steady"


def drift(step_s: Sequence[float]) -> float | None:
    """Relative growth of steps from the first rounds to the last; None where there are few rounds.

    Args:
        step_s: median step of each round, in their order.
    """
    n = len(step_s) // 3
    if len(step_s) < _LEAST_ROUNDS:
        return None
    return statistics.median(step_s[-n:]) / statistics.median(step_s[:n]) - 1.0
