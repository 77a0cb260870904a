"""`results.jsonl`: one record a line, appended to, and repaired after a run was killed while writing."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from harness.errors import StoreError
from harness.record_json import from_json
from harness.records import Record

_TORN = "results.jsonl.torn"


def repair(path: Path) -> bool:
    """Make `results.jsonl` end in a whole line; what was torn is kept in `results.jsonl.torn`.

    Returns:
        Whether a torn line was put aside.
    """
    if not path.is_file():
        return False
    data = path.read_bytes()
    whole, tail = _split_tail(data)
    if not tail:
        return False
    if _is_record(tail):
        # All of the record arrived and only its newline is missing.
        with path.open("ab") as stream:
            stream.write(b"\n")
            stream.flush()
            os.fsync(stream.fileno())
        return False
    with path.with_name(_TORN).open("ab") as stream:
        stream.write(tail + b"\n")
        stream.flush()
        os.fsync(stream.fileno())
    os.truncate(path, len(whole))
    return True


def read_results(path: Path) -> tuple[tuple[Record, ...], int, bool]:
    """Read `results.jsonl` without changing it.

    Returns:
        The newest record of each case and repeat, how many older ones there are, and whether the last line
        is torn, and so left out.
    Raises:
        StoreError: a line other than the last is damaged.
    """
    data = path.read_bytes() if path.is_file() else b""
    whole, tail = _split_tail(data)
    torn = bool(tail) and not _is_record(tail)
    lines = [*whole.splitlines(), *([tail] if tail and not torn else [])]
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found.append(from_json(line))
        except StoreError as error:
            raise StoreError(f"{path} line {number}: {error}; move that line elsewhere to go on") from None
    newest = newest_of_each(found)
    return newest, len(found) - len(newest), torn


def newest_of_each(records: Sequence[Record]) -> tuple[Record, ...]:
    """Keep the last record of each case and repeat, in the order in which they first came."""
    found: dict[tuple[str, int], Record] = {}
    for record in records:
        found[record.case, record.repeat] = record
    return tuple(found.values())


def _split_tail(data: bytes) -> tuple[bytes, bytes]:
    """Split into lines that are whole and a last one that may not be."""
    if data.endswith(b"\n"):
        start = data.rfind(b"\n", 0, len(data) - 1) + 1
        last = data[start:-1]
        # A machine that lost power can leave a block of zeros, newline included by a later write.
        return (data, b"") if _is_object(last) else (data[:start], last)
    start = data.rfind(b"\n") + 1
    return data[:start], data[start:]


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _is_record(line: bytes) -> bool:
    try:
        from_json(line)
    except StoreError:
        return False
    return True
