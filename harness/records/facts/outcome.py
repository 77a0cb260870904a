"""What became of a repeat: why it failed, how long its steps were, what they compute, what it saved."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

CheckedType: TypeAlias = Literal["model", "float64"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Why a case has no result: a kebab-case type, one line, and the stage it happened in."""

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
    `within_bound` says of a compressed strategy, which is not held to being equivalent, whether it lost no
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
        """Whether the strategy computes something else than it promises."""
        return self.equivalent is False or self.within_bound is False


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedCheckpoint:
    """What a repeat began with and what it left; steps are counted from the first of all such runs.

    `saved` is relative to the run folder.
    """

    saved: str | None = None
    saved_step: int | None = None
    restored: str | None = None
    restored_step: int | None = None
