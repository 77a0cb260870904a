"""`results.jsonl`: one record a line, appended to, and repaired after a run was killed while writing."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

from harness.atomic_files import write_bytes, write_text
from harness.errors import StoreError
from harness.records.contained_files import is_name, open_to_write, opened_inside, read_inside
from harness.records.record import MOST_LINE_BYTES, NewerRecordError, Record, from_json
from harness.records.run_documents import CASES, INDEX, RESULTS, STEPS

_TORN = "results.jsonl.torn"
DAMAGED = "results.jsonl.damaged"
_OUTDATED = "results.jsonl.outdated"

_MOST_NAMED = 3
_MOST_DIGITS = 9
"""Most digits of a repeat's number."""
Slot: TypeAlias = tuple[str, int]
"""A case and one of its repeats."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DamagedLine:
    """A line that is no record, or not the one that was written; numbered from 1."""

    number: int
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Index:
    """The lines that were written, by `results.index`.

    Attributes:
        counts: number of lines of each case and repeat; None for results older than their index, or where
            that is damaged.
        damage: what is wrong with the index, and the way out; None where nothing is.
    """

    counts: Counter[Slot] | None
    damage: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Lost:
    """Lines that are gone or may be, the file that is damaged by it, and the way out."""

    file: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """Content of `results.jsonl`.

    Attributes:
        records: the newest of each case and repeat.
        n_superseded: older records of the same cases and repeats.
        torn: whether the last line is incomplete, and left out.
        damaged: other lines that are left out.
        lost: lines that are gone; None where none is.
        counts: number of sound lines of each case and repeat.
    """

    records: tuple[Record, ...]
    n_superseded: int
    torn: bool
    damaged: tuple[DamagedLine, ...]
    lost: Lost | None
    counts: Counter[Slot]


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
    _move_lines(path, lines, {line.number for line in damaged}, DAMAGED)
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
    if not numbers:
        return
    # Killed in between, lines are in both files, and are moved again by the next run.
    _append(path.with_name(name), b"".join(lines[number - 1] for number in sorted(numbers)))
    write_bytes(path, b"".join(line for number, line in enumerate(lines, start=1) if number not in numbers))


def _put_aside_torn(path: Path) -> None:
    data = path.read_bytes()
    whole, tail = _split_tail(data)
    if tail and _is_record(tail):
        # All of the record arrived and only its newline is missing.
        _append(path, b"\n")
    elif tail:
        _append(path.with_name(_TORN), tail + b"\n")
        with os.fdopen(open_to_write(path), "r+b") as stream:
            stream.truncate(len(whole))


def _append(path: Path, data: bytes) -> None:
    with os.fdopen(open_to_write(path, is_appended=True), "ab") as stream:
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
    torn = 0
    # Before the results: a run that goes on writes it after them.
    index = read_index(path)
    try:
        for line in result_lines(path):
            if line.is_torn:
                torn = line.number
            else:
                _read_line(path, line.number, line.content, records, damaged)
    except FileNotFoundError:
        pass
    newest = newest_of_each(records)
    counts = Counter((record.case, record.repeat) for record in records)
    if torn and n_missing(index, counts) > len(damaged):
        # It is in the index, so it had been written whole.
        damaged.append(DamagedLine(number=torn, why="cut short after it was written"))
        torn = 0
    return Results(
        records=newest,
        n_superseded=len(records) - len(newest),
        torn=bool(torn),
        damaged=tuple(damaged),
        lost=lost_lines(path, index, counts, n_damaged=len(damaged) + bool(torn)),
        counts=counts,
    )


def read_index(path: Path) -> Index:
    """Read the index of results.

    Args:
        path: of the results.
    """
    try:
        # A last line that is not ended was being written.
        lines = read_inside(path.parent, INDEX).split(b"\n")[:-1]
    except FileNotFoundError:
        return Index(counts=None)
    except OSError as error:
        return Index(counts=None, damage=f"must be readable, got {error.strerror}; check its permissions")
    except StoreError as error:
        return Index(counts=None, damage=error.message.removeprefix(f"{INDEX} "))
    slots = [_slot(line) for line in lines]
    counts = Counter(slot for slot in slots if slot is not None)
    if None in slots:
        line = f"line {slots.index(None) + 1}"
        why = f"must hold lines as a/0, a case and a repeat, got {lines[slots.index(None)][:60]!r} in {line}"
        return Index(counts=None, damage=f"{why}; put back a copy, or remove it to go by {RESULTS} alone")
    return Index(counts=counts)


def _slot(line: bytes) -> Slot | None:
    case, _, repeat = line.decode(errors="replace").rpartition("/")
    is_number = repeat.isascii() and repeat.isdecimal() and len(repeat) <= _MOST_DIGITS
    return (case, int(repeat)) if is_number and is_name(case) else None


def n_missing(index: Index, counts: Counter[Slot]) -> int:
    """Number of lines that an index has and the results have not."""
    return 0 if index.counts is None else (index.counts - counts).total()


def lost_lines(path: Path, index: Index, counts: Counter[Slot], *, n_damaged: int) -> Lost | None:
    """Lines that are gone and were written, or may have been as their index is damaged; None where none is.

    Args:
        index: as of `read_index`.
        counts: number of lines that are there of each case and repeat.
        n_damaged: lines whose case and repeat cannot be read.
    """
    if index.damage is not None:
        return Lost(file=INDEX, why=index.damage)
    if index.counts is None:
        if counts or n_damaged or next(path.parent.glob(f"{CASES}/*/*/{STEPS}"), None) is None:
            return None
        return Lost(
            file=RESULTS,
            why=f"must hold the records of the repeats that {CASES} has the steps of, got none: put back a "
            f"copy, or remove {CASES} to measure them again",
        )
    n_lost = n_missing(index, counts) - n_damaged
    if n_lost <= 0:
        return None
    gone = sorted(f"{case}/{repeat}" for case, repeat in index.counts - counts)
    others = f" and {len(gone) - _MOST_NAMED} others" if len(gone) > _MOST_NAMED else ""
    more = "1 more record" if n_lost == 1 else f"{n_lost} more records"
    return Lost(
        file=RESULTS,
        why=f"must hold {more}, of {', '.join(gone[:_MOST_NAMED])}{others}, got none: removed after being "
        f"written; put back a copy, or remove {INDEX} to measure again what is missing",
    )


def write_index(path: Path, counts: Counter[Slot]) -> None:
    """Write the index of results anew, before lines that it no longer has are moved away.

    Args:
        path: of the results. counts: number of lines of each case and repeat.
    """
    write_text(path.with_name(INDEX), "".join(index_line(*slot) for slot in counts.elements()))


def index_line(case: str, repeat: int) -> str:
    """Line of the index for one line of the results."""
    return f"{case}/{repeat}\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultLine:
    """A line of `results.jsonl` without its newline, numbered from 1; `is_last` if no other follows."""

    number: int
    content: bytes
    is_last: bool
    is_ended: bool

    @property
    def is_torn(self) -> bool:
        """True if it was being written when its run ended."""
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
