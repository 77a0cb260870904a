"""Disturbance of the workers' cores and GPUs while a repeat was timed."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Grade = Literal["steady", "unsteady", "disturbed"]
# Of the cores' or a GPU's time that others have taken, from which on a repeat is unsteady, and disturbed.
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

    Of GPUs, that with most of it counts: `foreign_gpu` is the share of the time in which kernels of other
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


def grade_of(found: Stability) -> Grade | None:
    """How far levels of a repeat are to be trusted; None where nothing tells of it."""
    of_gpus = (found.foreign_gpu, found.throttled_gpu)
    shares = (found.foreign_cpu, found.stolen_cpu, found.throttled_cpu, *of_gpus)
    if all(each is None for each in (*shares, found.drift, found.n_hot, found.n_foreign_gpu)):
        return None
    worst = max((share for share in shares if share is not None), default=0.0)
    drift = abs(found.drift or 0.0)
    if worst >= DISTURBED_SHARE or drift >= DISTURBED_DRIFT or found.n_hot:
        return "disturbed"
    # A program on the same GPU may take any part of it where the driver does not say which.
    is_unknown = bool(found.n_foreign_gpu) and found.foreign_gpu is None
    is_unsteady = worst >= UNSTEADY_SHARE or drift >= UNSTEADY_DRIFT or is_unknown
    return "unsteady" if is_unsteady else "steady"


def drift(step_s: Sequence[float]) -> float | None:
    """By how much steps of the last rounds are longer than those of the first; None where there are few.

    Args:
        step_s: median step of each round, in their order.
    """
    n = len(step_s) // 3
    if len(step_s) < _LEAST_ROUNDS:
        return None
    return statistics.median(step_s[-n:]) / statistics.median(step_s[:n]) - 1.0
