"""What a step takes of processors, sockets and GPUs, from the readings around windows."""

import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from harness.measure.core_use import CoreUse
from harness.records.facts.costs import Energy, GpuUse
from harness.worker.counters.gpus import GpuReading


@dataclass(frozen=True, kw_only=True, slots=True)
class Consumption:
    """What a step takes; see `Record`."""

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
        gpus=_gpu_use(known, n_steps),
    )


def _gpu_use(uses: Sequence[CoreUse], n_steps: int) -> GpuUse | None:
    why = next((use.why_no_gpus for use in uses if use.why_no_gpus is not None), None)
    if why is not None:
        return GpuUse(why_none=why)
    pairs = [pair for use in uses for pair in use.gpus]
    if not pairs:
        return None
    busy = [share for before, after in pairs for share in _within(before.at_s, after)]
    held = [after.own_bytes for _, after in pairs if after.own_bytes is not None]
    return GpuUse(
        n_gpus=len(uses[-1].gpus),
        joules_per_step=_more_per_step(pairs, n_steps, lambda gpu: gpu.joules),
        busy=statistics.fmean(busy) if busy else None,
        own_bytes=max(held, default=None),
        link_bytes_per_step=_more_per_step(pairs, n_steps, lambda gpu: gpu.link_bytes),
        pcie_bytes_per_step=_more_per_step(pairs, n_steps, lambda gpu: gpu.pcie_bytes),
    )


def _within(start_s: float, last: GpuReading) -> Iterator[float]:
    """Samples that tell of no time before a window; how long the first one's is, is not known."""
    for (earlier_s, _), (_, share) in itertools.pairwise(last.busy):
        if earlier_s >= start_s:
            yield share


def _more_per_step(
    pairs: Sequence[tuple[GpuReading, GpuReading]],
    n_steps: int,
    counter: Callable[[GpuReading], float | None],
) -> float | None:
    """How much further a counter went in all windows; None where one of them lacks, or has gone back."""
    total = 0.0
    for before, after in pairs:
        first, last = counter(before), counter(after)
        if first is None or last is None or last < first:
            return None
        total += last - first
    return total / n_steps
