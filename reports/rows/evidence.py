"""Parts of a row: means, marks, problems, placements, passes and traces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from reports.statistics import Mean

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
    """Verdict on the correctness of a strategy, and the evidence for it.

    `blind` marks a control that passed the check: on that workload the check would pass anything.
    `undecidable` names the variables of which the check could say nothing.
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
        """True if the strategy may win: it keeps what it promises, or is the reference itself."""
        return self.kind in ("equivalent", "within-bound", "reference")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFile:
    """A traced step of one repeat, by the name of its file in the run folder."""

    repeat: int
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementLine:
    """Placement of a variable, or of `n` variables whose names differ in numbers alone.

    `name` has `#` for such a number, and `bytes` are those of one. `where` it lies, how its gradient or new
    value is `synchronized`, and `why`.
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
    """Placement of variables by a plan; `lines` are those of the largest, `n_more` variables are in none.

    `server_bytes` by task; `worker_bytes` of the replica that owns the most. `path` is the plan's in the run
    folder.
    """

    path: str
    lines: tuple[PlacementLine, ...]
    n_more: int
    server_bytes: tuple[int, ...]
    worker_bytes: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRow:
    """A pass over a worker's graph: mean seconds over repeats, and nodes after it in the first of them."""

    name: str
    nodes: int
    added: int | None
    seconds: Mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Repeats of one case without a usable result, all for the same reason.

    `log` are the last lines of the worker's log that tells most of it, `log_path` its name in the run folder.
    `run` is the name of that run, where a report is of several.
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
    """Step times of one repeat, slowest worker of each step, in the order they ran, without those that lead
    into windows.

    `seconds[:n_warmup]` is the warm-up that no figure uses. `thinned_from` is the number of steps before
    thinning for display, or None when all are here.
    """

    repeat: int
    p50: float | None
    seconds: tuple[float, ...]
    n_warmup: int
    thinned_from: int | None
