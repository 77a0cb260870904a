"""`results.jsonl`: one record a line, appended to, and repaired after a run was killed while writing."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.atomic_files import write_bytes
from harness.errors import StoreError
from harness.records.record import Record
from harness.records.record_json import NewerRecordError, from_json

_TORN = "results.jsonl.torn"
_DAMAGED = "results.jsonl.damaged"


@dataclass(frozen=True, kw_only=True, slots=True)
class DamagedLine:
    """A line that is no record, or not the one that was written; numbered from 1."""

    number: int
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """What `results.jsonl` holds.

    Attributes:
        records: the newest of each case and repeat.
        n_superseded: older records of the same cases and repeats.
        torn: whether the last line is incomplete, and left out.
        damaged: other lines that are left out.
    """

    records: tuple[Record, ...]
    n_superseded: int
    torn: bool
    damaged: tuple[DamagedLine, ...]


def repair(path: Path) -> tuple[DamagedLine, ...]:
    """Leave nothing but sound lines in `results.jsonl`.

    What was torn is kept in `results.jsonl.torn`, what is damaged in `results.jsonl.damaged`.

    Returns:
        The damaged lines.
    Raises:
        StoreError: a later version wrote one of the lines.
    """
    if not path.is_file():
        return ()
    _put_aside_torn(path)
    lines = path.read_bytes().splitlines(keepends=True)
    damaged = _read_lines(path, lines)[1]
    if damaged:
        numbers = {line.number for line in damaged}
        aside = [line for number, line in enumerate(lines, start=1) if number in numbers]
        _append(path.with_name(_DAMAGED), b"".join(aside))
        kept = [line for number, line in enumerate(lines, start=1) if number not in numbers]
        write_bytes(path, b"".join(kept))
    return damaged


def _put_aside_torn(path: Path) -> None:
    """Make the file end in a whole line."""
    data = path.read_bytes()
    whole, tail = _split_tail(data)
    if tail and _is_record(tail):
        # All of the record arrived and only its newline is missing.
        _append(path, b"\n")
    elif tail:
        _append(path.with_name(_TORN), tail + b"\n")
        os.truncate(path, len(whole))


def _append(path: Path, data: bytes) -> None:
    with path.open("ab") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def read_results(path: Path) -> Results:
    """Read `results.jsonl` without changing it.

    Raises:
        StoreError: a later version wrote one of the lines.
    """
    data = path.read_bytes() if path.is_file() else b""
    whole, tail = _split_tail(data)
    torn = bool(tail) and not _is_record(tail)
    lines = [*whole.splitlines(), *([tail] if tail and not torn else [])]
    records, damaged = _read_lines(path, lines)
    newest = newest_of_each(records)
    return Results(records=newest, n_superseded=len(records) - len(newest), torn=torn, damaged=damaged)


def _read_lines(path: Path, lines: Sequence[bytes]) -> tuple[tuple[Record, ...], tuple[DamagedLine, ...]]:
    records: list[Record] = []
    damaged: list[DamagedLine] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            records.append(from_json(line))
        except NewerRecordError as error:
            raise StoreError(f"{path} line {number}: {error}") from None
        except StoreError as error:
            damaged.append(DamagedLine(number=number, why=str(error)))
    return tuple(records), tuple(damaged)


def newest_of_each(records: Sequence[Record]) -> tuple[Record, ...]:
    """Keep the last record of each case and repeat, in the order in which they first came."""
    newest: dict[tuple[str, int], Record] = {}
    for record in records:
        newest[record.case, record.repeat] = record
    return tuple(newest.values())


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
