"""The command line of a process that runs one of our modules."""

from __future__ import annotations

import sys


def module_command(module: str, *arguments: str) -> list[str]:
    """A command that runs one of our modules with this process's Python.

    With `-m` alone Python looks into the current folder first, where a user's folder `harness`, `workloads`
    or `reports` stands for our package. `-P` leaves it out, as a console script does, and keeps `PYTHONPATH`.
    """
    return [sys.executable, "-P", "-m", module, *arguments]
