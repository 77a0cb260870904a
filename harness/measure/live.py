"""Progress of a run, for the status line and live metrics, published between windows."""

import time
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowProgress:
    """A window that has just ended.

    Attributes:
        case: id of the case. workload, strategy: name with parameters.
        precision, xla, input: see `harness.records.conditions.Method`.
        n_rounds: finished rounds of the repeat, this window's included, of `n_all_rounds`.
        examples_per_s: rate of the median step.
        n_steps: all steps of the window. payload_bytes: predicted bytes sent in them.
        resident_bytes: memory of the largest worker; None if unknown.
        at_s: seconds since 1970.
    """

    experiment: str
    case: str
    workload: str
    strategy: str
    provider: str
    device: str
    precision: str
    xla: bool
    input: str
    n_rounds: int
    n_all_rounds: int
    examples_per_s: float
    n_steps: int
    payload_bytes: float
    resident_bytes: int | None
    at_s: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remaining:
    """Remainder of a run; `seconds` is None until the length of a repeat is known."""

    n_repeats: int
    seconds: float | None
