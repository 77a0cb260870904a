"""Waiting for what other processes do: for a condition, with a deadline."""

import time
from collections.abc import Callable
from pathlib import Path


def eventually(condition: Callable[[], object], within_s: float, what: str) -> None:
    """Wait until a condition holds."""
    limit_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < limit_s, f"not within {within_s} s: {what}"
        time.sleep(0.02)


def is_waiting(log: Path) -> bool:
    """Return True if a job of `probe_jobs` that waits has begun, by the file that it wrote."""
    return log.exists() and b"waiting" in log.read_bytes()
