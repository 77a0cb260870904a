"""`results.jsonl`: one record a line, appended to, and repaired after a run was killed while writing."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from harness.atomic_files import write_bytes
from harness.errors import StoreError
from harness.records.contained_files import opened_inside
from harness.records.record import Record
from harness.records.record_json import MOST_LINE_BYTES, NewerRecordError, from_json

_TORN = "results.jsonl.torn"
_DAMAGED = "results.jsonl.damaged"
_OUTDATED = "results.jsonl.outdated"


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
    _move_lines(path, lines, {line.number for line in damaged}, _DAMAGED)
    return damaged


def put_aside_outdated(path: Path, outdated: Collection[tuple[str, int]]) -> None:
    """Move all lines of some repeats, superseded ones with them, to `results.jsonl.outdated`.

    The file is replaced: whoever has it open for appending must open it again.

    Args:
        path: of a file that has been repaired.
        outdated: cases and repeats.
    """
    lines = path.read_bytes().splitlines(keepends=True)
    numbers = {
        number
        for number, line in enumerate(lines, start=1)
        if line.strip() and _case_and_repeat(line) in outdated
    }
    _move_lines(path, lines, numbers, _OUTDATED)


def _case_and_repeat(line: bytes) -> tuple[str, int]:
    record = from_json(line)
    return record.case, record.repeat


def _move_lines(path: Path, lines: Sequence[bytes], numbers: Collection[int], name: str) -> None:
    """Move lines, numbered from 1, to the end of a file beside their own."""
    if not numbers:
        return
    # Killed in between, lines are in both files, and are moved again by the next run.
    _append(path.with_name(name), b"".join(lines[number - 1] for number in sorted(numbers)))
    write_bytes(path, b"".join(line for number, line in enumerate(lines, start=1) if number not in numbers))


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
    records: list[Record] = []
    damaged: list[DamagedLine] = []
    torn = False
    try:
        for line in result_lines(path):
            if line.is_torn:
                torn = True
            else:
                _read_line(path, line.number, line.content, records, damaged)
    except FileNotFoundError:
        pass
    newest = newest_of_each(records)
    return Results(records=newest, n_superseded=len(records) - len(newest), torn=torn, damaged=tuple(damaged))


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultLine:
    """A line of `results.jsonl` without its newline, numbered from 1; `is_last` if no other follows."""

    number: int
    content: bytes
    is_last: bool
    is_ended: bool

    @property
    def is_torn(self) -> bool:
        """Whether it was being written when its run ended."""
        if not self.is_last or not self.content:
            return False
        # A machine that lost power can leave a block of zeros, newline included by a later write.
        return not (_is_object(self.content) if self.is_ended else _is_record(self.content))


def result_lines(path: Path) -> Iterator[ResultLine]:
    """Lines of a file of results one by one, each cut where it is longer than any record.

    Raises:
        StoreError: it is no file of its folder. FileNotFoundError: there is none. OSError: it cannot be
            read.
    """
    with opened_inside(path.parent, path.name) as file, os.fdopen(os.dup(file), "rb") as stream:
        number, line = 1, _next_line(stream)
        while line:
            following = _next_line(stream)
            yield ResultLine(
                number=number,
                content=line.removesuffix(b"\n"),
                is_last=not following,
                is_ended=line.endswith(b"\n"),
            )
            number, line = number + 1, following


def _next_line(stream: BinaryIO) -> bytes:
    """One line, its newline with it; of a longer one than any record its beginning, the rest passed over."""
    line = stream.readline(MOST_LINE_BYTES + 2)
    rest = line
    while rest and len(line) == MOST_LINE_BYTES + 2 and not rest.endswith(b"\n"):
        rest = stream.readline(1 << 20)
        if rest.endswith(b"\n"):
            return line[:-1] + b"\n"
    return line


def _read_lines(path: Path, lines: Sequence[bytes]) -> tuple[tuple[Record, ...], tuple[DamagedLine, ...]]:
    records: list[Record] = []
    damaged: list[DamagedLine] = []
    for number, line in enumerate(lines, start=1):
        _read_line(path, number, line, records, damaged)
    return tuple(records), tuple(damaged)


def _read_line(
    path: Path, number: int, line: bytes, records: list[Record], damaged: list[DamagedLine]
) -> None:
    if not line.strip():
        return
    try:
        records.append(from_json(line))
    except NewerRecordError as error:
        raise StoreError(f"{path} line {number}: {error}") from None
    except StoreError as error:
        damaged.append(DamagedLine(number=number, why=str(error)))


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
