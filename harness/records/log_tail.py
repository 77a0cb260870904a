"""Last lines of a log, fit to be shown: no control characters, no endless lines, no secrets."""

from __future__ import annotations

import os
from pathlib import Path

from harness.contained_files import opened_inside
from harness.records.legible_text import cut, spelt_out
from harness.records.redaction import redacted

MOST_LETTERS = 300
"""Of a line; the middle of a longer one is left out."""
_MOST_BYTES = 1 << 16


def log_tail(folder: Path, *names: str, n_lines: int) -> tuple[str, ...]:
    """Read the last lines of a log, blank ones left out.

    Args:
        folder: that it lies in, by way of `names`.
    Raises:
        StoreError: it is no file of that folder. OSError: it cannot be read.
    """
    with opened_inside(folder, *names) as file:
        start = max(0, os.fstat(file).st_size - _MOST_BYTES)
        data = os.pread(file, _MOST_BYTES, start)
    # Of the first line only a part may be here, from which nobody can tell a secret.
    data = data.partition(b"\n")[2] if start and b"\n" in data else data
    lines = redacted(data.decode(errors="replace")).splitlines()
    return tuple(_shown(line) for line in [line for line in lines if line.strip()][-n_lines:])


def _shown(line: str) -> str:
    return spelt_out(cut(line, most=MOST_LETTERS).expandtabs(4).rstrip())
