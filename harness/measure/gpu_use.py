"""Use and disturbance of GPUs in the windows of a repeat, from readings on both sides of each."""

import itertools
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias, TypeVar

from harness.records.costs import GpuUse
from harness.records.outcome import Stability
from harness.worker.counters.gpus import POWER_LIMIT, GpuReading

Number = TypeVar("Number", int, float)
GpuPair: TypeAlias = tuple[GpuReading, GpuReading]
"""Readings of one GPU before a window and after it."""

# The driver's samples are 1/6 to 1 s long; what lies further apart has others between that nobody read.
_LONGEST_SAMPLE_S = 1.25
_LEAST_WITHIN = 0.5
_NO_SAMPLE = (
    "the driver takes a sample of 1/6 to 1 s now and then, and none lay in a window by at least its half; "
    "raise measure.window_s"
)
_UNSEEN = "a counter went back, or came or went, within a window"
_UNLISTED = "a program that NVIDIA's driver does not list here holds memory"
# Field of a record → field of the readings that it comes of.
_USE = {
    "joules_per_step": "joules",
    "busy": "busy",
    "own_bytes": "own_bytes",
    "peak_bytes": "peak_bytes",
    "link_bytes_per_step": "link_bytes",
    "pcie_bytes_per_step": "pcie_bytes",
}
_DISTURBANCE = {
    "foreign_gpu": "foreign",
    "n_foreign_gpu": "n_foreign",
    "throttled_gpu": "reasons",
    "gpu_sm_mhz": "sm_mhz",
    "gpu_memory_mhz": "memory_mhz",
}
_OTHERWISE = {"busy": _NO_SAMPLE, "foreign": _UNLISTED}


def largest_of_shared(pairs: Sequence[GpuPair]) -> GpuPair:
    """The pair of one GPU that stands for all workers on it: that of the worker which takes most memory."""
    before, after = max(pairs, key=lambda pair: pair[1].peak_bytes or pair[1].own_bytes or 0)
    if len(pairs) > 1:
        # What the driver lists in one worker's container lacks the memory of the others.
        before, after = (replace(each, has_unlisted=False) for each in (before, after))
    return before, after


def gpu_use(pairs: Sequence[GpuPair], n_steps: int) -> GpuUse:
    """Figures of all windows of a repeat.

    Args:
        pairs: of each GPU and window, at least one.
        n_steps: made in all windows.
    """

    def per_step(counter: str) -> float | None:
        grown = _growth(pairs, counter)
        return None if grown is None else grown / n_steps

    found = GpuUse(
        n_gpus=len({_uuid(pair) for pair in pairs}),
        joules_per_step=per_step("joules"),
        busy=_busy(pairs),
        own_bytes=_largest(after.own_bytes for _, after in pairs),
        peak_bytes=_largest(after.peak_bytes for _, after in pairs),
        link_bytes_per_step=per_step("link_bytes"),
        pcie_bytes_per_step=per_step("pcie_bytes"),
    )
    return replace(found, why_no=_why_no(found, _USE, pairs))


def disturbance(pairs: Sequence[GpuPair], found: Stability) -> Stability:
    """Add to what disturbed a repeat's cores what disturbed its GPUs.

    Args:
        pairs: of each GPU and window, at least one.
    """
    by_gpu = [list(group) for _, group in itertools.groupby(sorted(pairs, key=_uuid), key=_uuid)]
    found = replace(
        found,
        foreign_gpu=_largest(_foreign_share(windows) for windows in by_gpu),
        n_foreign_gpu=_largest(_n_foreign(pair) for pair in pairs),
        throttled_gpu=_largest(_share(windows, _throttled) for windows in by_gpu),
        gpu_slowdowns=tuple(dict.fromkeys(what for pair in pairs for what in _slowdowns(pair))),
        gpu_sm_mhz=_median(after.sm_mhz for _, after in pairs),
        gpu_memory_mhz=_median(after.memory_mhz for _, after in pairs),
    )
    return replace(found, why_no_gpu=_why_no(found, _DISTURBANCE, pairs))


def _why_no(found: object, sources: Mapping[str, str], pairs: Sequence[GpuPair]) -> dict[str, str]:
    return {
        name: _reason(pairs, counter) or _OTHERWISE.get(counter, _UNSEEN)
        for name, counter in sources.items()
        if getattr(found, name) is None
    }


def _uuid(pair: GpuPair) -> str:
    return pair[0].uuid


def _largest(values: Iterable[Number | None]) -> Number | None:
    return max((value for value in values if value is not None), default=None)


def _median(values: Iterable[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(statistics.median(known)) if known else None


def _reason(pairs: Iterable[GpuPair], counter: str) -> str:
    readings = (reading for before, after in pairs for reading in (after, before))
    return next((reading.why_no[counter] for reading in readings if counter in reading.why_no), "")


def _growth(pairs: Sequence[GpuPair], counter: str) -> float | None:
    """Growth of a counter in all windows; None where one of them lacks, or has gone back."""
    total = 0.0
    for before, after in pairs:
        first, last = getattr(before, counter), getattr(after, counter)
        if first is None or last is None or last < first:
            return None
        total += last - first
    return total


def _busy(pairs: Sequence[GpuPair]) -> float | None:
    """Mean of the driver's samples, each by how long it lay in windows.

    The last sample of a window is often taken after it ends; the next reading has it, whoever's turn it is.
    """
    weights, total = 0.0, 0.0
    for _, group in itertools.groupby(sorted(pairs, key=_uuid), key=_uuid):
        windows = list(group)
        samples = dict(sample for pair in windows for reading in pair for sample in reading.busy or ())
        for start_s, end_s in itertools.pairwise(sorted(samples)):
            within_s = sum(
                max(0.0, min(end_s, after.at_s) - max(start_s, before.at_s)) for before, after in windows
            )
            is_sample = end_s - start_s <= _LONGEST_SAMPLE_S
            if is_sample and within_s >= _LEAST_WITHIN * (end_s - start_s):
                weights += within_s
                total += within_s * samples[end_s]
    return total / weights if weights else None


def _n_foreign(pair: GpuPair) -> int | None:
    seen = [each.n_foreign + each.has_unlisted for each in pair if each.n_foreign is not None]
    return max(seen, default=None)


def _foreign_share(windows: Sequence[GpuPair]) -> float | None:
    """Share of one GPU's time, by how long each window was; None if the driver does not know it of a window.

    A program that is not listed has no share: what it took is not known.
    """
    if any(each.has_unlisted for pair in windows for each in pair):
        return None
    return _share(windows, lambda pair: pair[1].foreign)


def _share(windows: Sequence[GpuPair], of: Callable[[GpuPair], float | None]) -> float | None:
    shares = [(_seconds(pair), share) for pair in windows if (share := of(pair)) is not None]
    whole_s = sum(weight_s for weight_s, _ in shares)
    return sum(weight_s * share for weight_s, share in shares) / whole_s if shares else None


def _seconds(pair: GpuPair) -> float:
    # A clock that was set back makes no window shorter than nothing.
    return max(pair[1].at_s - pair[0].at_s, 1e-9)


def _throttled(pair: GpuPair) -> float | None:
    """Share of a window in which something held clocks down that a busy GPU does not meet by itself.

    The power limit is no disturbance: a GPU that is used to the full runs at it. Heat is counted. The
    hardware's own reasons are not, nor are those of drivers without counters: one that holds at the end of a
    window stands for all of it.
    """
    counted, reasons = _held_down(pair), pair[1].reasons
    if counted is None and reasons is None:
        return None
    if set(reasons or ()) - {POWER_LIMIT, *(counted or ())}:
        return 1.0
    held_s = (s for what, s in (counted or {}).items() if what != POWER_LIMIT)
    return min(max(held_s, default=0.0) / _seconds(pair), 1.0)


def _held_down(pair: GpuPair) -> Mapping[str, float] | None:
    before, after = (each.held_down_s for each in pair)
    if before is None or after is None:
        return None
    return {what: max(0.0, s - before.get(what, s)) for what, s in after.items()}


def _slowdowns(pair: GpuPair) -> Iterable[str]:
    counted = _held_down(pair) or {}
    return (*(what for what, held_s in counted.items() if held_s > 0), *(pair[1].reasons or ()))
