"""How quiet the workers' cores were while a repeat was timed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Grade = Literal["steady", "unsteady", "disturbed"]
# Of the cores' time that others have taken, from which on a repeat is unsteady, and disturbed.
UNSTEADY_SHARE, DISTURBED_SHARE = 0.05, 0.20
UNSTEADY_DRIFT, DISTURBED_DRIFT = 0.10, 0.30
_LEAST_ROUNDS = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Stability:
    """What disturbed a repeat's windows; None is what nothing tells of.

    Of the time of the workers' cores in the counted windows, `foreign_cpu` was used by other programs, the
    kernel's handling of interrupts left out; `stolen_cpu` was given to other virtual machines;
    `throttled_cpu` was withheld by the limit of a control group. `foreign_cpu_most` is that of the window
    with most of it. `n_hot` counts how often cores were slowed down for their heat. `drift` is by how much
    steps of the last third of the rounds are longer than those of the first. `grade` sums that up.
    """

    foreign_cpu: float | None = None
    foreign_cpu_most: float | None = None
    stolen_cpu: float | None = None
    throttled_cpu: float | None = None
    n_hot: int | None = None
    drift: float | None = None
    grade: Grade | None = None


def grade_of(found: Stability) -> Grade | None:
    """How far levels of a repeat are to be trusted; None where nothing tells of it."""
    shares = (found.foreign_cpu, found.stolen_cpu, found.throttled_cpu)
    if all(each is None for each in (*shares, found.drift, found.n_hot)):
        return None
    worst = max((share for share in shares if share is not None), default=0.0)
    drift = abs(found.drift or 0.0)
    if worst >= DISTURBED_SHARE or drift >= DISTURBED_DRIFT or found.n_hot:
        return "disturbed"
    return "unsteady" if worst >= UNSTEADY_SHARE or drift >= UNSTEADY_DRIFT else "steady"


def drift(step_s: Sequence[float]) -> float | None:
    """By how much steps of the last rounds are longer than those of the first; None where there are few.

    Args:
        step_s: median step of each round, in their order.
    """
    n = len(step_s) // 3
    if len(step_s) < _LEAST_ROUNDS:
        return None
    return statistics.median(step_s[-n:]) / statistics.median(step_s[:n]) - 1.0
