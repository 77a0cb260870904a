"""Use of the workers' cores, sockets and GPUs in windows, from readings on both sides of each window."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.measure.gpu_use import GpuPair, disturbance, gpu_use, largest_of_shared
from harness.records.costs import Energy, GpuUse
from harness.records.outcome import Stability, drift, grade_of
from harness.worker.counters.cores import CoreReading, taken_j

Readings = tuple[CoreReading, CoreReading]
"""Readings of one worker before a window and after it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CoreUse:
    """Use of the cores' time in one window.

    Attributes:
        core_s: seconds of all cores together. throttled_s, n_hot: None where it is not known.
        foreign_s: may be below 0: the kernel counts in ticks, which fall before their window or after it.
        own_s: processor time of each worker.
        package_j: that all sockets of the workers' hosts took; None, with `why_no_package`, where that is
            not known.
        gpus: each GPU of the workers, before the window and after it. why_no_gpus: where they tell nothing.
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
    """Put the readings of all workers together; None where one lacks.

    Args:
        readings: of each worker; those that share cores see the same use of them, and each its own share.
    """
    known = [each for each in readings if each is not None]
    if not known or len(known) < len(readings):
        return None
    groups: dict[tuple[str, tuple[int, ...]], list[Readings]] = {}
    for each in known:
        groups.setdefault((each[0].kernel, each[0].cores), []).append(each)
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
    """Disturbance of the windows of a repeat.

    Args:
        uses: of each counted window.
        step_s: median step of each, in their order.
    """
    found = replace(_shares(uses), drift=drift(step_s))
    pairs = [pair for use in uses if use is not None for pair in use.gpus]
    found = disturbance(pairs, found) if pairs else found
    return replace(found, grade=grade_of(found))


def _shares(uses: Sequence[CoreUse | None]) -> Stability:
    known = [each for each in uses if each is not None and each.core_s > 0]
    if not known or len(known) < len(uses):
        return Stability()
    core_s = sum(each.core_s for each in known)
    throttled = [each.throttled_s for each in known if each.throttled_s is not None]
    hot = [each.n_hot for each in known if each.n_hot is not None]
    return Stability(
        foreign_cpu=max(0.0, sum(each.foreign_s for each in known)) / core_s,
        foreign_cpu_most=max(0.0, *(each.foreign_s / each.core_s for each in known)),
        stolen_cpu=sum(each.stolen_s for each in known) / core_s,
        throttled_cpu=sum(throttled) / core_s if throttled else None,
        n_hot=sum(hot) if hot else None,
    )


def _package_j(known: Sequence[Readings]) -> tuple[float | None, str | None]:
    of_host: dict[str, float] = {}
    for before, after in known:
        joules = taken_j(before.energy, after.energy)
        if joules is None:
            return None, after.energy.missing or "a counter of energy came or went within a window"
        # Of workers on one host, each sees what all take.
        of_host[before.kernel] = max(of_host.get(before.kernel, 0.0), joules)
    return sum(of_host.values()), None


def _gpus(known: Sequence[Readings]) -> tuple[tuple[GpuPair, ...], str | None]:
    """Each GPU once, however many workers share it, or why nothing is known of them."""
    found: dict[tuple[str, str], list[GpuPair]] = {}
    for before, after in known:
        if before.gpus is None or after.gpus is None:
            continue
        if (why := before.gpus.missing or after.gpus.missing) is not None:
            return (), why
        for pair in zip(before.gpus.gpus, after.gpus.gpus, strict=True):
            found.setdefault((before.kernel, pair[0].uuid), []).append(pair)
    return tuple(map(largest_of_shared, found.values())), None


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
    """Spread what all windows took over their steps.

    Args:
        uses: of each window.
        n_steps: made in all of them.
    """
    known = [use for use in uses if use is not None]
    if not known or len(known) < len(uses) or not n_steps:
        missing = "the workers' processors were not looked at while steps were made"
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
