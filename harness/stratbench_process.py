"""Another `stratbench` command, in a process of its own that is ended when the wait for it ends early.

Only where the process that waits is killed (SIGKILL) does the command go on, to its own end.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from harness.module_command import module_command

_ENDING_S = 120.0
"""How long a command may take to clean up once it is told to end."""


def run_stratbench(
    arguments: Sequence[str],
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
    log: BinaryIO | None = None,
    timeout_s: float | None = None,
) -> int:
    """Run a command and wait for it; whatever ends the wait has it clean up and end.

    Args:
        arguments: without the program's name.
        environ: its environment; None for that of this process.
        folder: its working directory; None for that of this process.
        log: takes its output; None for where that of this process goes.
    Returns:
        its exit status, negative where a signal killed it.
    Raises:
        subprocess.TimeoutExpired: it took longer, and has been ended.
    """
    with ExitStack() as stack:
        process = subprocess.Popen(
            module_command("harness.cli", *arguments),
            env=environ,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Ctrl-C comes to this process alone, which ends that one.
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
