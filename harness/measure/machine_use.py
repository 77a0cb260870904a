"""Use and disturbance of the workers' cores, sockets and GPUs, from readings before and after each window."""

import itertools
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from harness.records.costs import Energy, GpuUse
from harness.records.outcome import Stability, drift, grade_of
from harness.worker.counters.cores import CoreReading, taken_j
from harness.worker.counters.gpus import POWER_LIMIT, GpuReading

Number = TypeVar("Number", int, float)
GpuPair: TypeAlias = tuple[GpuReading, GpuReading]
"""Readings of one GPU before a window and after it."""

# The driver's samples are 1/6 to 1 s long; samples further apart have unread ones between them.
_LONGEST_SAMPLE_S = 1.25
_LEAST_WITHIN = 0.5
_NO_SAMPLE = (
    "the driver takes a sample of 1/6 to 1 s now and then, and none lay in a window by at least its half; "
    "raise measure.window_s"
)
_UNSEEN = "a counter went back, or came or went, within a window"
_UNLISTED = "a program that NVIDIA's driver does not list here holds memory"
# Field of a record → field of the readings that it is computed from.
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
    """Pair of readings that represents all workers on a GPU: that of the worker with the most memory."""
    before, after = max(pairs, key=lambda pair: pair[1].peak_bytes or pair[1].own_bytes or 0)
    if len(pairs) > 1:
        # In a worker's container, the driver does not list the others' memory.
        before, after = (replace(reading, has_unlisted=False) for reading in (before, after))
    return before, after


def gpu_use(pairs: Sequence[GpuPair], n_steps: int) -> GpuUse:
    """Use of GPUs over all windows of a repeat.

    Args:
        pairs: readings of each GPU before and after each window, at least one pair.
        n_steps: steps in all windows.
    """

    def per_step(counter: str) -> float | None:
        grown = _growth(pairs, counter)
        return None if grown is None else grown / n_steps

    use = GpuUse(
        n_gpus=len({_uuid(pair) for pair in pairs}),
        joules_per_step=per_step("joules"),
        busy=_busy(pairs),
        own_bytes=_largest(after.own_bytes for _, after in pairs),
        peak_bytes=_largest(after.peak_bytes for _, after in pairs),
        link_bytes_per_step=per_step("link_bytes"),
        pcie_bytes_per_step=per_step("pcie_bytes"),
    )
    return replace(use, why_no=_why_no(use, _USE, pairs))


def disturbance(pairs: Sequence[GpuPair], stability: Stability) -> Stability:
    """Add the disturbance of a repeat's GPUs to that of its cores.

    Args:
        pairs: readings of each GPU before and after each window, at least one pair.
    """
    by_gpu = [list(group) for _, group in itertools.groupby(sorted(pairs, key=_uuid), key=_uuid)]
    stability = replace(
        stability,
        foreign_gpu=_largest(_foreign_share(windows) for windows in by_gpu),
        n_foreign_gpu=_largest(_n_foreign(pair) for pair in pairs),
        throttled_gpu=_largest(_share(windows, _throttled) for windows in by_gpu),
        gpu_slowdowns=tuple(dict.fromkeys(what for pair in pairs for what in _slowdowns(pair))),
        gpu_sm_mhz=_median(after.sm_mhz for _, after in pairs),
        gpu_memory_mhz=_median(after.memory_mhz for _, after in pairs),
    )
    return replace(stability, why_no_gpu=_why_no(stability, _DISTURBANCE, pairs))


def _why_no(figures: object, sources: Mapping[str, str], pairs: Sequence[GpuPair]) -> dict[str, str]:
    return {
        name: _reason(pairs, counter) or _OTHERWISE.get(counter, _UNSEEN)
        for name, counter in sources.items()
        if getattr(figures, name) is None
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
    """Growth of a counter over all windows; None if a reading is missing or has decreased."""
    total = 0.0
    for before, after in pairs:
        first, last = getattr(before, counter), getattr(after, counter)
        if first is None or last is None or last < first:
            return None
        total += last - first
    return total


def _busy(pairs: Sequence[GpuPair]) -> float | None:
    """Mean of the driver's samples, weighted by their overlap with windows.

    The last sample of a window is often taken after it ends; the next reading has it.
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
    seen = [reading.n_foreign + reading.has_unlisted for reading in pair if reading.n_foreign is not None]
    return max(seen, default=None)


def _foreign_share(windows: Sequence[GpuPair]) -> float | None:
    """Share of one GPU's time, weighted by windows' lengths; None if the driver lacks it for a window.

    A program that is not listed has an unknown share.
    """
    if any(reading.has_unlisted for pair in windows for reading in pair):
        return None
    return _share(windows, lambda pair: pair[1].foreign)


def _share(windows: Sequence[GpuPair], of: Callable[[GpuPair], float | None]) -> float | None:
    shares = [(_seconds(pair), share) for pair in windows if (share := of(pair)) is not None]
    whole_s = sum(weight_s for weight_s, _ in shares)
    return sum(weight_s * share for weight_s, share in shares) / whole_s if shares else None


def _seconds(pair: GpuPair) -> float:
    # A clock that was set back must not give a negative length.
    return max(pair[1].at_s - pair[0].at_s, 1e-9)


def _throttled(pair: GpuPair) -> float | None:
    """Share of a window in which clocks were reduced for a reason other than the GPU's own full use.

    The power limit is no disturbance, because a fully used GPU reaches it. Heat is measured over time. The
    hardware's own reasons are not, nor are any with drivers without counters: one that is active at the end
    of a window counts for all of it.
    """
    counted, reasons = _held_down(pair), pair[1].reasons
    if counted is None and reasons is None:
        return None
    if set(reasons or ()) - {POWER_LIMIT, *(counted or ())}:
        return 1.0
    held_s = (s for what, s in (counted or {}).items() if what != POWER_LIMIT)
    return min(max(held_s, default=0.0) / _seconds(pair), 1.0)


def _held_down(pair: GpuPair) -> Mapping[str, float] | None:
    before, after = (reading.held_down_s for reading in pair)
    if before is None or after is None:
        return None
    return {what: max(0.0, s - before.get(what, s)) for what, s in after.items()}


def _slowdowns(pair: GpuPair) -> Iterable[str]:
    counted = _held_down(pair) or {}
    return (*(what for what, held_s in counted.items() if held_s > 0), *(pair[1].reasons or ()))


Readings = tuple[CoreReading, CoreReading]
"""Readings of one worker before a window and after it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CoreUse:
    """Use of the cores' time in one window.

    Attributes:
        core_s: seconds of all cores together.
        foreign_s: seconds of other programs; below 0 if a tick of the window was counted outside of it.
        stolen_s: seconds given to other virtual machines.
        throttled_s: seconds withheld by control groups; None if unknown.
        n_hot: slowdowns for heat; None if unknown.
        own_s: processor time of each worker.
        package_j: energy of all sockets of the workers' hosts; None if unknown, for the reason in
            `why_no_package`.
        gpus: readings of each GPU of the workers, before the window and after it; empty if unknown, for the
            reason in `why_no_gpus`.
    """

    core_s: float
    foreign_s: float
    stolen_s: float
    throttled_s: float | None
    n_hot: int | None
    own_s: tuple[float, ...] = ()
    package_j: float | None = None
    why_no_package: str | None = None
    gpus: tuple[GpuPair, ...] = ()
    why_no_gpus: str | None = None


def core_use(readings: Sequence[Readings | None]) -> CoreUse | None:
    """Combine the readings of all workers; None if one is missing.

    Args:
        readings: two readings of each worker; workers on the same cores read the same use of them, and each
            its own processor time.
    """
    known = [reading for reading in readings if reading is not None]
    if not known or len(known) < len(readings):
        return None
    groups: dict[tuple[str, tuple[int, ...]], list[Readings]] = {}
    for pair in known:
        groups.setdefault((pair[0].kernel, pair[0].cores), []).append(pair)
    parts = [_of_group(group) for group in groups.values()]
    withheld_s: dict[tuple[str, str], float] = {}
    for before, after in known:
        if before.throttled_s is not None and after.throttled_s is not None:
            place, more_s = (before.kernel, before.control_group), after.throttled_s - before.throttled_s
            withheld_s[place] = max(withheld_s.get(place, 0.0), more_s)
    hot = [part.n_hot for part in parts if part.n_hot is not None]
    package_j, why_no_package = _package_j(known)
    gpus, why_no_gpus = _gpus(known)
    return CoreUse(
        core_s=sum(part.core_s for part in parts),
        foreign_s=sum(part.foreign_s for part in parts),
        stolen_s=sum(part.stolen_s for part in parts),
        throttled_s=sum(withheld_s.values()) if withheld_s else None,
        n_hot=sum(hot) if hot else None,
        own_s=tuple(after.own_s - before.own_s for before, after in known),
        package_j=package_j,
        why_no_package=why_no_package,
        gpus=gpus,
        why_no_gpus=why_no_gpus,
    )


def stability(uses: Sequence[CoreUse | None], step_s: Sequence[float]) -> Stability:
    """Disturbance over the windows of a repeat.

    Args:
        uses: use of each counted window.
        step_s: median step of each of these windows, in seconds.
    """
    result = replace(_shares(uses), drift=drift(step_s))
    pairs = [pair for use in uses if use is not None for pair in use.gpus]
    result = disturbance(pairs, result) if pairs else result
    return replace(result, grade=grade_of(result))


def _shares(uses: Sequence[CoreUse | None]) -> Stability:
    known = [use for use in uses if use is not None and use.core_s > 0]
    if not known or len(known) < len(uses):
        return Stability()
    core_s = sum(use.core_s for use in known)
    throttled = [use.throttled_s for use in known if use.throttled_s is not None]
    hot = [use.n_hot for use in known if use.n_hot is not None]
    return Stability(
        foreign_cpu=max(0.0, sum(use.foreign_s for use in known)) / core_s,
        foreign_cpu_most=max(0.0, *(use.foreign_s / use.core_s for use in known)),
        stolen_cpu=sum(use.stolen_s for use in known) / core_s,
        throttled_cpu=sum(throttled) / core_s if throttled else None,
        n_hot=sum(hot) if hot else None,
    )


def _package_j(known: Sequence[Readings]) -> tuple[float | None, str | None]:
    of_host: dict[str, float] = {}
    for before, after in known:
        joules = taken_j(before.energy, after.energy)
        if joules is None:
            return None, after.energy.missing or "a counter of energy came or went within a window"
        # Each worker on a host sees the use of all workers on it.
        of_host[before.kernel] = max(of_host.get(before.kernel, 0.0), joules)
    return sum(of_host.values()), None


def _gpus(known: Sequence[Readings]) -> tuple[tuple[GpuPair, ...], str | None]:
    """Each GPU once, however many workers share it; or the reason why nothing is known."""
    pairs_of_gpu: dict[tuple[str, str], list[GpuPair]] = {}
    for before, after in known:
        if before.gpus is None or after.gpus is None:
            continue
        if (why := before.gpus.missing or after.gpus.missing) is not None:
            return (), why
        for pair in zip(before.gpus.gpus, after.gpus.gpus, strict=True):
            pairs_of_gpu.setdefault((before.kernel, pair[0].uuid), []).append(pair)
    return tuple(map(largest_of_shared, pairs_of_gpu.values())), None


def _of_group(group: Sequence[Readings]) -> CoreUse:
    wall_s = max(after.at_s - before.at_s for before, after in group)
    busy_s = max(after.busy_s - before.busy_s for before, after in group)
    own_s = sum(after.own_s - before.own_s for before, after in group)
    hot = [
        after.n_hot - before.n_hot
        for before, after in group
        if before.n_hot is not None and after.n_hot is not None
    ]
    core_s = wall_s * len(group[0][0].cores)
    return CoreUse(
        core_s=core_s,
        foreign_s=min(busy_s - own_s, core_s),
        stolen_s=max(after.stolen_s - before.stolen_s for before, after in group),
        throttled_s=None,
        n_hot=max(hot) if hot else None,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Consumption:
    """Processor time, energy and GPU use of a step; see `Record`."""

    cpu_s_per_step: tuple[float, ...] | None
    energy: Energy
    gpus: GpuUse | None = None


def consumption(uses: Sequence[CoreUse | None], n_steps: int) -> Consumption:
    """Processor time and energy of a step, averaged over all windows.

    Args:
        uses: use of each window.
        n_steps: steps in all windows.
    """
    known = [use for use in uses if use is not None]
    if not known or len(known) < len(uses) or not n_steps:
        missing = "CPU use was not sampled"
        return Consumption(cpu_s_per_step=None, energy=Energy(why_no_package=missing))
    own_s = zip(*(use.own_s for use in known), strict=True)
    joules = [use.package_j for use in known if use.package_j is not None]
    is_whole = len(joules) == len(known)
    return Consumption(
        cpu_s_per_step=tuple(sum(of_worker) / n_steps for of_worker in own_s),
        energy=Energy(
            package_j_per_step=sum(joules) / n_steps if is_whole else None,
            why_no_package=None if is_whole else next(u.why_no_package for u in known if u.package_j is None),
        ),
        gpus=_gpus_of_windows(known, n_steps),
    )


def _gpus_of_windows(uses: Sequence[CoreUse], n_steps: int) -> GpuUse | None:
    why = next((use.why_no_gpus for use in uses if use.why_no_gpus is not None), None)
    pairs = [pair for use in uses for pair in use.gpus]
    if why is not None or not pairs:
        return None if why is None else GpuUse(why_none=why)
    return gpu_use(pairs, n_steps)
