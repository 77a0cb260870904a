"""Jobs that the tests of the actor run in its processes."""

import os
import subprocess
import sys
import time
from pathlib import Path

from harness.worker.process.job import JobState


def pid(state: JobState) -> int:
    return os.getpid()


def sleep(state: JobState, seconds: float) -> None:
    Path(os.environ["READY"]).touch()
    time.sleep(seconds)


def close_outputs(state: JobState) -> None:
    sys.stdout.close()
    sys.stderr = None


def interrupt(state: JobState) -> None:
    raise KeyboardInterrupt("of its own")


def environment(state: JobState, name: str) -> str | None:
    return os.environ.get(name)


def start_sleeper(state: JobState) -> int:
    return subprocess.Popen(["sleep", "3600"]).pid


def exit_beside_a_child(state: JobState) -> None:
    """End this process, while a child of it holds its channel."""
    if os.fork() == 0:
        time.sleep(3600)
    os._exit(3)
