"""What a step takes of processors, sockets and GPUs, from the readings around windows."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.measure.core_use import CoreUse
from harness.measure.gpu_use import gpu_use
from harness.records.facts.costs import Energy, GpuUse


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
        gpus=_gpus(known, n_steps),
    )


def _gpus(uses: Sequence[CoreUse], n_steps: int) -> GpuUse | None:
    why = next((use.why_no_gpus for use in uses if use.why_no_gpus is not None), None)
    pairs = [pair for use in uses for pair in use.gpus]
    if why is not None or not pairs:
        return None if why is None else GpuUse(why_none=why)
    return gpu_use(pairs, n_steps)
