"""Energy that a host's processors have taken, as they count it themselves (RAPL)."""

from dataclasses import dataclass
from pathlib import Path

_ZONES = Path("/sys/class/powercap")
# Zones of cores and memory have a second colon, and what is no socket another name.
_PACKAGES, _NAME = "*-rapl:*", "package"


@dataclass(frozen=True, kw_only=True, slots=True)
class Package:
    """The counter of one socket.

    Attributes:
        joules: since some moment; it begins anew after `wraps_at_j`.
    """

    name: str
    joules: float
    wraps_at_j: float


@dataclass(frozen=True, kw_only=True, slots=True)
class EnergyReading:
    """Counters of all sockets of a host; `missing` says in words why there are none."""

    packages: tuple[Package, ...] = ()
    missing: str | None = None


def read_energy() -> EnergyReading:
    """Read the counters.

    Source:
        The kernel's "Power Capping Framework": energy_uj and max_energy_range_uj, in microjoules.
    """
    try:
        packages = [_read(zone) for zone in sorted(_ZONES.glob(_PACKAGES)) if zone.name.count(":") == 1]
    except PermissionError:
        return EnergyReading(missing="the kernel shows the energy of processors to root alone")
    except (OSError, ValueError):
        packages = []
    found = tuple(package for package in packages if package.name.startswith(_NAME))
    return EnergyReading(
        packages=found,
        missing=None if found else "this machine shows no energy of its processors (RAPL)",
    )


def taken_j(before: EnergyReading, after: EnergyReading) -> float | None:
    """Joules between two readings of a host; None where a counter lacks, or is another one."""
    first = {package.name: package for package in before.packages}
    if not first or first.keys() != {package.name for package in after.packages}:
        return None
    return sum((each.joules - first[each.name].joules) % each.wraps_at_j for each in after.packages)


def _read(zone: Path) -> Package:
    name, joules, wraps_at_j = (
        (zone / file).read_text().strip() for file in ("name", "energy_uj", "max_energy_range_uj")
    )
    # Two sockets may share a name where each has several dies.
    return Package(name=f"{name} {zone.name}", joules=int(joules) * 1e-6, wraps_at_j=int(wraps_at_j) * 1e-6)
