"""Processes that run our modules, and a `stratbench` command that ends with the wait for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO


def module_command(module: str, *arguments: str) -> list[str]:
    """Command that runs one of our modules with this process's Python.

    With `-m` alone, Python imports from the current folder first, and a user's folder `harness`, `workloads`
    or `reports` would hide our package. `-P` leaves that folder out, as console scripts do, but uses
    PYTHONPATH.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


_ENDING_S = 120.0
"""Seconds that a command has to clean up after SIGTERM."""


def run_stratbench(
    arguments: Sequence[str],
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
    log: BinaryIO | None = None,
    timeout_s: float | None = None,
) -> int:
    """Run a command and wait for it; if the wait is cut short, let it clean up and end.

    Args:
        arguments: command line without the program's name.
        environ: environment of the command; None for this process's own.
        folder: working directory; None for this process's own.
        log: file for the command's output; None for this process's own output.
    Returns:
        Exit status; negative if a signal killed the command.
    Raises:
        subprocess.TimeoutExpired: it took longer than `timeout_s`, and has been ended.
    """
    with ExitStack() as stack:
        process = subprocess.Popen(
            module_command("harness.cli", *arguments),
            env=environ,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Only this process receives Ctrl-C; it ends the other one.
            start_new_session=True,
        )
        stack.callback(_end, process)
        return process.wait(timeout_s)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()
