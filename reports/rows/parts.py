"""Parts of a row: correctness mark, problems, placement of variables, passes, traces and steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.records.conditions import TimedUnit
from reports.statistics import Interval, Mean

RowStatus = Literal["ok", "failed", "skipped", "implausible"]
MarkKind = Literal[
    "equivalent",
    "not-equivalent",
    "within-bound",
    "beyond-bound",
    "undecidable",
    "control",
    "twin",
    "not-checked",
    "statistical",
    "reference",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Verdict on the correctness of a strategy, with its figures.

    Attributes:
        undecidable: variables with too much rounding noise to judge.
        blind: true for a control that passed the check: on this workload the check detects nothing.
    """

    kind: MarkKind
    explanation: str
    max_update_error: float | None
    noise_floor: float | None
    tolerance: float | None
    undecidable: tuple[str, ...] = ()
    blind: bool = False

    @property
    def proven(self) -> bool:
        """True if the strategy may win: it passed its check, or is the reference."""
        return self.kind in ("equivalent", "within-bound", "reference")


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedStep:
    """Predicted duration of a step in seconds, with its 95 % interval.

    Attributes:
        limited_by: cause of most of the duration.
        extrapolated: quantities beyond those that were measured.
    """

    value: float
    interval: Interval
    limited_by: str
    extrapolated: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFile:
    """File of a traced step of one repeat, relative to the run folder."""

    repeat: int
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementLine:
    """Placement of a variable, or of n variables whose names differ in numbers only.

    Attributes:
        name: name, with `#` in place of such a number.
        bytes: bytes of one variable.
        where: tasks, servers or replicas that store it.
        synchronized: treatment of its gradient or new value.
        why: reasons that the plan gives.
    """

    name: str
    n: int
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    where: str
    synchronized: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Placement of variables by a plan.

    Attributes:
        path: path of the plan, relative to the run folder.
        lines: the largest variables.
        n_more: number of variables without a line.
        server_bytes: bytes on servers, by task.
        worker_bytes: bytes on the replica with the most.
    """

    path: str
    lines: tuple[PlacementLine, ...]
    n_more: int
    server_bytes: tuple[int, ...]
    worker_bytes: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRow:
    """Pass over a worker's graph: mean seconds over repeats, and nodes after it in the first repeat."""

    name: str
    nodes: int
    added: int | None
    seconds: Mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Repeats of one case without a usable result, all for the same reason.

    Attributes:
        log_path: log of the most relevant worker, relative to the run folder.
        log: last lines of it.
        run: name of the run; empty in a report of one run.
    """

    workload: str
    shape: str
    strategy: str
    repeats: tuple[int, ...]
    status: RowStatus
    type: str
    stage: str
    message: str
    log_path: str | None = None
    log: tuple[str, ...] = ()
    run: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeries:
    """Step times of one repeat, of the slowest worker of each step, without steps that lead into windows.

    Attributes:
        unit: unit of timing. p50: median of the mean steps of these units.
        n_warmup: first steps, which no figure uses.
        thinned_from: number of steps before thinning for display; None if all are here.
    """

    repeat: int
    p50: float | None
    unit: TimedUnit
    seconds: tuple[float, ...]
    n_warmup: int
    thinned_from: int | None
