"""Prometheus and what belongs to it: from the path, or as `.ci/prometheus` unpacks them."""

import shutil
from pathlib import Path

PROGRAMS = ("prometheus", "promtool", "prometheus-pushgateway")
_UNPACKED = Path(__file__).parents[1] / "build" / "prometheus" / "usr" / "bin"


def program(name: str) -> str | None:
    """Path of one of the programs; None where there is none."""
    return shutil.which(name) or shutil.which(name, path=str(_UNPACKED))
