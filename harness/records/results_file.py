"""`results.jsonl`: one record per line, readable in any state, and repaired after its run was killed."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from harness.atomic_files import write_bytes, write_text
from harness.errors import StoreError
from harness.records.contained_files import is_name, open_to_write, opened_inside, read_inside
from harness.records.record import MOST_LINE_BYTES, NULLABLE, NewerRecordError, Record, from_json
from harness.records.run_documents import CASES, INDEX, RESULTS, STEPS

DAMAGED = "results.jsonl.damaged"
_OUTDATED = "results.jsonl.outdated"

_MOST_NAMED = 3
_MOST_DIGITS = 9
"""Maximum of digits of a repeat's number."""
Slot: TypeAlias = tuple[str, int]
"""A case and one of its repeats."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Damage:
    """Damaged file of a run folder, or line of one, with the reason."""

    where: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A line of `results.jsonl` that is not blank.

    Attributes:
        number: line number, from 1.
        record: record without damaged fields; None if there is none.
        why: reasons why the line is damaged or not understood, one for each damaged field.
        is_torn: True if the run ended while writing the line, so that nothing is lost.
        is_newer: True if a later version wrote the line.
    """

    number: int
    record: Record | None = None
    why: tuple[str, ...] = ()
    is_torn: bool = False
    is_newer: bool = False

    @property
    def is_sound(self) -> bool:
        return self.record is not None and not self.why


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """Content of `results.jsonl`; `lost` describes lines that were written and are missing."""

    lines: tuple[Line, ...] = ()
    lost: Damage | None = None

    @property
    def damaged(self) -> tuple[Line, ...]:
        return tuple(line for line in self.lines if line.why and not line.is_torn)


def read_results(path: Path) -> Results:
    """Read `results.jsonl` without changing it, damaged or not; a missing file has no lines.

    Raises:
        StoreError: it is no regular file of its folder. OSError: it cannot be read.
    """
    # Before the results, because a run in progress writes the index after them.
    index, damage = _read_index(path.parent)
    lines: list[Line] = []
    content = b""
    with suppress(FileNotFoundError):
        for number, content in enumerate(_contents(path), start=1):
            if content.strip():
                lines.append(_read_line(number, content))
    n_written = Counter((line.record.case, line.record.repeat) for line in lines if line.record is not None)
    n_unreadable = len(lines) - n_written.total()
    # A power failure can leave a block of zeros, with a newline by a later write. A line longer than any
    # record is not a line that was being written.
    is_record = len(content) > MOST_LINE_BYTES or _is_object(content)
    if lines and lines[-1].record is None and content.strip() and not is_record:
        was_whole = index is not None and (index - n_written).total() >= n_unreadable
        why = ("cut short after it was written",) if was_whole else lines[-1].why
        lines[-1] = replace(lines[-1], is_torn=not was_whole, why=why)
    if damage is None:
        damage = _lost_lines(path.parent, index, n_written, n_unreadable)
    return Results(lines=tuple(lines), lost=damage)


def _contents(path: Path) -> Iterator[bytes]:
    """Lines without their newline, cut if longer than any record."""
    with opened_inside(path.parent, path.name) as file, os.fdopen(os.dup(file), "rb") as stream:
        while line := stream.readline(MOST_LINE_BYTES + 2):
            rest = line
            while rest and len(line) == MOST_LINE_BYTES + 2 and not rest.endswith(b"\n"):
                rest = stream.readline(1 << 20)
            yield line.removesuffix(b"\n")


def _read_line(number: int, content: bytes) -> Line:
    """Read one line; damaged optional fields are set to None, any other damage loses the line."""
    fields: list[str] = []
    damages: list[str] = []
    while True:
        try:
            return Line(number=number, record=from_json(content, without=fields), why=tuple(damages))
        except NewerRecordError as error:
            return Line(number=number, why=(str(error),), is_newer=True)
        except StoreError as error:
            field = (error.field or "").split(".")[0]
            if field not in NULLABLE:
                return Line(number=number, why=(str(error),))
            fields.append(field)
            damages.append(str(error))


def _read_index(folder: Path) -> tuple[Counter[Slot] | None, Damage | None]:
    """Number of lines written for each case and repeat; None without an index, or if it is damaged."""
    try:
        # An unfinished last line was being written.
        lines = read_inside(folder, INDEX).split(b"\n")[:-1]
    except FileNotFoundError:
        return None, None
    except OSError as error:
        why = f"must be readable, got {error.strerror}; check its permissions"
        return None, Damage(where=INDEX, why=why)
    except StoreError as error:
        return None, Damage(where=INDEX, why=error.message.removeprefix(f"{INDEX} "))
    slots = Counter[Slot]()
    for number, line in enumerate(lines, start=1):
        slot = _slot(line)
        if slot is None:
            why = (
                f"must hold lines as a/0, a case and a repeat, got {line[:60]!r} in line {number}; put back "
                f"a copy, or remove it to go by {RESULTS} alone"
            )
            return None, Damage(where=INDEX, why=why)
        slots[slot] += 1
    return slots, None


def _slot(line: bytes) -> Slot | None:
    case, _, repeat = line.decode(errors="replace").rpartition("/")
    is_number = repeat.isascii() and repeat.isdecimal() and len(repeat) <= _MOST_DIGITS
    return (case, int(repeat)) if is_number and is_name(case) else None


def _lost_lines(
    folder: Path, index: Counter[Slot] | None, n_written: Counter[Slot], n_unreadable: int
) -> Damage | None:
    """Damage report for lines that were written and are missing; None if none are.

    Args:
        index: number of written lines per case and repeat; None if unknown.
        n_written: number of lines of each that are present.
        n_unreadable: number of lines whose case and repeat cannot be read.
    """
    if index is None:
        if n_written or n_unreadable or next(folder.glob(f"{CASES}/*/*/{STEPS}"), None) is None:
            return None
        return Damage(
            where=RESULTS,
            why=f"must hold the records of the repeats that {CASES} has the steps of, got none: put back a "
            f"copy, or remove {CASES} to measure them again",
        )
    missing = index - n_written
    n_lost = missing.total() - n_unreadable
    if n_lost <= 0:
        return None
    names = sorted(f"{case}/{repeat}" for case, repeat in missing)
    others = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    more = "1 more record" if n_lost == 1 else f"{n_lost} more records"
    return Damage(
        where=RESULTS,
        why=f"must hold {more}, of {', '.join(names[:_MOST_NAMED])}{others}, got none: removed after being "
        f"written; put back a copy, or remove {INDEX} to measure again what is missing",
    )


def write_index(path: Path, counts: Counter[Slot]) -> None:
    """Rewrite the index of results, before lines without an entry in it are moved away.

    Args:
        path: path of the results. counts: number of lines per case and repeat.
    """
    write_text(path.with_name(INDEX), "".join(index_line(*slot) for slot in counts.elements()))


def index_line(case: str, repeat: int) -> str:
    """Line of the index for one line of the results."""
    return f"{case}/{repeat}\n"


def repair(path: Path, results: Results) -> None:
    """Move all damaged lines to `results.jsonl.damaged`, and end the last line.

    Args:
        results: content of that file.
    """
    _move_lines(path, {line.number for line in results.lines if not line.is_sound}, DAMAGED)


def put_aside_outdated(path: Path, outdated: Collection[Slot]) -> None:
    """Move all lines of some repeats, superseded ones included, to `results.jsonl.outdated`.

    The file is replaced: reopen it before appending.

    Args:
        path: path of a file that has been repaired.
        outdated: cases and repeats to move.
    """
    records = ((line.number, line.record) for line in read_results(path).lines)
    numbers = {n for n, r in records if r is not None and (r.case, r.repeat) in outdated}
    _move_lines(path, numbers, _OUTDATED)


def _move_lines(path: Path, numbers: Collection[int], name: str) -> None:
    if not path.is_file():
        return
    with path.open("rb") as stream:
        lines = stream.readlines()
    is_ended = not lines or lines[-1].endswith(b"\n")
    if not numbers and is_ended:
        return
    if not is_ended:
        lines[-1] += b"\n"
    if numbers:
        # If killed in between, lines are in both files, and the next run moves them again.
        _append(path.with_name(name), b"".join(lines[number - 1] for number in sorted(numbers)))
    write_bytes(path, b"".join(line for number, line in enumerate(lines, start=1) if number not in numbers))


def _append(path: Path, data: bytes) -> None:
    with os.fdopen(open_to_write(path, is_appended=True), "ab") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def newest_of_each(records: Sequence[Record]) -> tuple[Record, ...]:
    """Last record of each case and repeat, in the order of their first ones."""
    newest: dict[Slot, Record] = {}
    for record in records:
        newest[record.case, record.repeat] = record
    return tuple(newest.values())


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
