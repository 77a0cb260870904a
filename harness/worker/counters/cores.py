"""Processor time, clocks and energy of the cores that a worker is pinned to."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from harness.worker.counters.gpus import GpuReadings, read_gpus
from harness.worker.process.os_process import boot_id

_ZONES = Path("/sys/class/powercap")
# Zones of cores and memory have a second colon in their names; other zones are no sockets.
_PACKAGES, _NAME = "*-rapl:*", "package"


@dataclass(frozen=True, kw_only=True, slots=True)
class Package:
    """Energy counter of one socket.

    Attributes:
        joules: energy since some moment; it wraps around after `wraps_at_j`.
    """

    name: str
    joules: float
    wraps_at_j: float


@dataclass(frozen=True, kw_only=True, slots=True)
class EnergyReading:
    """Counters of all sockets of a host; `missing` says why there are none."""

    packages: tuple[Package, ...] = ()
    missing: str | None = None


def read_energy() -> EnergyReading:
    """Read the energy counters.

    Source:
        The kernel's "Power Capping Framework": energy_uj and max_energy_range_uj, in microjoules.
    """
    try:
        packages = [_read(zone) for zone in sorted(_ZONES.glob(_PACKAGES)) if zone.name.count(":") == 1]
    except PermissionError:
        return EnergyReading(missing="the kernel shows the energy of processors to root alone")
    except (OSError, ValueError):
        packages = []
    domains = tuple(package for package in packages if package.name.startswith(_NAME))
    return EnergyReading(
        packages=domains,
        missing=None if domains else "this machine shows no energy of its processors (RAPL)",
    )


def taken_j(before: EnergyReading, after: EnergyReading) -> float | None:
    """Joules between two readings of a host; None if a counter is missing or was replaced."""
    first = {package.name: package for package in before.packages}
    if not first or first.keys() != {package.name for package in after.packages}:
        return None
    return sum(
        (package.joules - first[package.name].joules) % package.wraps_at_j for package in after.packages
    )


def _read(zone: Path) -> Package:
    name, joules, wraps_at_j = (
        (zone / file).read_text().strip() for file in ("name", "energy_uj", "max_energy_range_uj")
    )
    # Two sockets may share a name where each has several dies.
    return Package(name=f"{name} {zone.name}", joules=int(joules) * 1e-6, wraps_at_j=int(wraps_at_j) * 1e-6)


_STAT = Path("/proc/stat")
_GROUPS = Path("/sys/fs/cgroup")
_THERMAL = "/sys/devices/system/cpu/cpu{core}/thermal_throttle/core_throttle_count"
# Statistics file of this control group, a name in it and its unit in seconds: version 2, then version 1.
_THROTTLED = (
    (Path("/sys/fs/cgroup/cpu.stat"), "throttled_usec", 1e-6),
    (Path("/sys/fs/cgroup/cpu/cpu.stat"), "throttled_time", 1e-9),
)
# Fields of a core's line: user, nice, system, idle, iowait, irq, softirq, steal.
_BUSY, _STOLEN = (0, 1, 2), 7


@dataclass(frozen=True, kw_only=True, slots=True)
class CoreReading:
    """Counters of the cores that this process may run on, at one moment.

    Attributes:
        kernel: boot id. cores: numbers of the cores.
        at_s: time on the monotonic clock.
        busy_s: seconds of programs and kernel, without interrupts.
        stolen_s: seconds given to other virtual machines.
        own_s: processor time of this process, all threads.
        control_group: id of this process's group on its kernel.
        throttled_s: time withheld from that group; None if unknown.
        n_hot: thermal slowdowns; None if unknown.
        energy: counters of all sockets of the host, other users included.
        gpus: readings of this process's GPUs; None if it uses none.
    """

    kernel: str
    cores: tuple[int, ...]
    at_s: float
    busy_s: float
    stolen_s: float
    own_s: float
    control_group: str
    throttled_s: float | None
    n_hot: int | None
    energy: EnergyReading
    gpus: GpuReadings | None = None


def read_cores(since_s: float | None = None) -> CoreReading | None:
    """Read the counters; None if the kernel shows none.

    Args:
        since_s: see `read_gpus`.
    """
    # GPU counters take long to read: before a window they are read first, after it last.
    gpus = read_gpus() if since_s is None else None
    try:
        cores = tuple(sorted(os.sched_getaffinity(0)))
        ticks = _ticks(_STAT.read_text(), cores)
        per_s = os.sysconf("SC_CLK_TCK")
        kernel = boot_id()
    except (AttributeError, OSError, ValueError, IndexError):
        return None
    if len(ticks) != len(cores):
        return None
    return CoreReading(
        kernel=kernel,
        cores=cores,
        at_s=time.monotonic(),
        busy_s=sum(tick[place] for tick in ticks for place in _BUSY) / per_s,
        stolen_s=sum(tick[_STOLEN] for tick in ticks) / per_s,
        own_s=time.process_time(),
        control_group=_control_group(),
        throttled_s=_throttled_s(),
        n_hot=_n_hot(cores),
        energy=read_energy(),
        gpus=gpus if since_s is None else read_gpus(since_s),
    )


def _ticks(stat: str, cores: tuple[int, ...]) -> list[list[int]]:
    wanted = {f"cpu{core}" for core in cores}
    lines = (line.split() for line in stat.splitlines() if line.startswith("cpu"))
    return [[int(value) for value in values] for name, *values in lines if name in wanted]


def _control_group() -> str:
    """Path of the control group (in a container always the same), and its folder there."""
    try:
        root = _GROUPS.stat()
        return f"{root.st_dev}/{root.st_ino} {Path('/proc/self/cgroup').read_text()}"
    except OSError:
        return ""


def _throttled_s() -> float | None:
    for path, name, unit_s in _THROTTLED:
        try:
            values = dict(line.split() for line in path.read_text().splitlines())
            return int(values[name]) * unit_s
        except (OSError, ValueError, KeyError):
            continue
    return None


def _n_hot(cores: tuple[int, ...]) -> int | None:
    try:
        return sum(int(Path(_THERMAL.format(core=core)).read_text()) for core in cores)
    except (OSError, ValueError):
        return None
