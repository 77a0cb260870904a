"""Run folders as frozen values with legible text; whatever cannot be used is listed."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TypeVar, cast

import numpy as np

from harness.records.record import Record, from_json
from harness.records.run_documents import RESULTS, RUN_FILE, STEPS
from harness.records.safe_text import cut, redacted, spelt_out
from harness.records.stored_run import (
    StoredRun,
    StoreError,
    load_run,
    lost_lines,
    read_documents,
    read_index,
    read_lines,
)
from reports.rows.evidence import StepSeries
from reports.rows.repeat import is_square
from reports.rows.report import LeftOut

Value = TypeVar("Value")
MOST_LETTERS = 2_000
"""Of a name, a message or any other text; the middle of a longer one is left out."""


def legible(text: str) -> str:
    """Text on one line, spelt out, and cut where it is longer than any that a person reads."""
    if len(text) > MOST_LETTERS:
        # Of a secret that is cut nobody can tell any more that it is one.
        text = cut(redacted(text), most=MOST_LETTERS)
    return spelt_out(text)


def legible_record(record: Record) -> Record:
    """The record with legible text."""
    return cast("Record", _legible_value(record))


def legible_document(document: Mapping[str, Value]) -> dict[str, Value]:
    """A document of nested mappings and lists with legible text, keys included."""
    return {legible(str(key)): cast("Value", _legible_value(value)) for key, value in document.items()}


def legible_left_out(item: LeftOut) -> LeftOut:
    """What could not be used, with legible text."""
    return dataclasses.replace(item, where=legible(item.where), why=legible(item.why))


def _legible_value(value: object) -> object:
    """The same object where nothing in it changes, as in nearly all of thousands of records."""
    if value is None or isinstance(value, float | int):
        return value
    if isinstance(value, str):
        return legible(value)
    if isinstance(value, tuple | list):
        items = [_legible_value(item) for item in value]
        return value if all(map(operator.is_, items, value)) else type(value)(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changes = {
            name: changed
            for name in _field_names(type(value))
            if (changed := _legible_value(item := getattr(value, name))) is not item
        }
        return dataclasses.replace(value, **changes) if changes else value
    if isinstance(value, Mapping):
        return {_legible_value(key): _legible_value(item) for key, item in value.items()}
    return value


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(item.name for item in dataclasses.fields(kind))


def without_odd_figures(record: Record) -> tuple[Record, tuple[str, ...]]:
    """The record without what nothing can be made of.

    Returns:
        The record, and for each such figure what it must be, what it is, and what becomes of it.
    """
    matrix, observer = record.tcp_matrix, record.observer
    whys, rate = list(_odd_rounds(record)), record.examples_per_s
    if rate is not None and not 0.0 < rate < math.inf:
        whys.append(f"examples_per_s: must be above 0, got {rate!r}; shown as missing")
        record = replace(record, examples_per_s=None)
    if matrix is not None and not is_square(matrix):
        lengths = ", ".join(map(str, sorted({len(line) for line in matrix})))
        whys.append(
            f"tcp_matrix: must have as many cells in each line as lines, got {len(matrix)} lines of {lengths}"
            "; shown as missing"
        )
        record = replace(record, tcp_matrix=None)
    if observer is not None and len(observer.with_s) != len(observer.without_s):
        whys.append(
            f"observer: must have windows in pairs, got {len(observer.with_s)} with and "
            f"{len(observer.without_s)} without; shown as missing"
        )
        record = replace(record, observer=None)
    return record, tuple(whys)


def _odd_rounds(record: Record) -> Iterator[str]:
    rounds = record.rounds
    if rounds is None:
        return
    for name, steps_s in (("step_s", rounds.step_s), ("baseline_step_s", rounds.baseline_step_s or ())):
        odd = [step_s for step_s in steps_s if not 0.0 < step_s < math.inf]
        if odd:
            yield f"rounds.{name}: must be above 0, got {odd[0]!r}; {len(odd)} of them are left out"


# Fields without a default say which case a line is about; without them it is about nothing.
_NULLABLE = {item.name for item in dataclasses.fields(Record) if item.default is None}
MAX_SHOWN_STEPS = 400
MAX_SHOWN_REPEATS = 20
"""Of one strategy, evenly spread over the run, whose single steps are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run folder as read, and what in it could not be used."""

    name: str
    stored: StoredRun
    left_out: tuple[LeftOut, ...]

    @property
    def records(self) -> tuple[Record, ...]:
        """The newest record of each case and repeat."""
        return self.stored.records

    @property
    def experiment(self) -> Mapping[str, object]:
        """The resolved experiment, empty where it is lost."""
        return self.stored.experiment


def load(path: Path, *, with_files: bool = False) -> Run:
    """Read a run folder, damaged or not.

    Args:
        with_files: whether plans, steps and traces are held against their checksums, too.
    Raises:
        harness.errors.StoreError: when `path` is no run folder at all.
    """
    try:
        stored = load_run(path)
    except (StoreError, OSError):
        # Whatever is wrong with one file, the others may still make a report; without run.json there is no
        # run to report on.
        if not (path / RUN_FILE).is_file():
            raise
        run = _rescue(path)
    else:
        is_sound = not stored.damaged and all(record.run == stored.run for record in stored.records)
        run = _sound(stored) if is_sound else _rescue(path)
    damaged = tuple(_damaged_files(run.stored)) if with_files else ()
    return _legible(_without_odd_figures(replace(run, left_out=(*run.left_out, *damaged))))


def _without_odd_figures(run: Run) -> Run:
    checked = [without_odd_figures(record) for record in run.records]
    odd = [
        LeftOut(where=f"{record.case}/{record.repeat}", why=why) for record, whys in checked for why in whys
    ]
    if not odd:
        return run
    stored = replace(run.stored, records=tuple(record for record, _ in checked))
    return replace(run, stored=stored, left_out=(*run.left_out, *odd))


def _legible(run: Run) -> Run:
    stored = run.stored
    return Run(
        name=legible(run.name),
        stored=replace(
            stored,
            run=legible(stored.run),
            spec_hash=legible(stored.spec_hash),
            created_utc=legible(stored.created_utc),
            experiment=legible_document(stored.experiment),
            environment=legible_document(stored.environment),
            records=tuple(map(legible_record, stored.records)),
        ),
        left_out=tuple(map(legible_left_out, run.left_out)),
    )


def _sound(stored: StoredRun) -> Run:
    left_out = []
    if stored.lost is not None:
        left_out.append(LeftOut(where=stored.lost.file, why=stored.lost.why, is_damage=True))
    if stored.torn:
        left_out.append(
            LeftOut(where=f"{RESULTS}, last line", why="incomplete: the run ended while writing it")
        )
    if stored.n_superseded:
        older = "1 older record" if stored.n_superseded == 1 else f"{stored.n_superseded} older records"
        left_out.append(
            LeftOut(
                where=RESULTS,
                why=f"{older} of repeats that were run again",
            )
        )
    return Run(name=stored.run, stored=stored, left_out=tuple(left_out))


def read_steps(run: Run, record: Record, *, most: int = MAX_SHOWN_STEPS) -> StepSeries | LeftOut:
    """Step times of one repeat: per step the slowest worker's, in order, thinned evenly for display.

    Args:
        most: steps to show.
    Returns:
        The steps, or why there are none.
    """
    where = f"{record.case}/{record.repeat}/{STEPS}"
    try:
        stored = run.stored.steps(record)
    except StoreError as error:
        return LeftOut(where=where, why=f"{error}; step times are not shown")
    if stored is None:
        return LeftOut(where=where, why="not there; step times are not shown")
    taken = stored.end_s - stored.start_s
    good = np.isfinite(taken) & (taken > 0)
    if not good.all():
        return LeftOut(where=where, why="holds steps that end before they start; step times are not shown")
    numbers, place = np.unique(stored.step, return_inverse=True)
    slowest = np.zeros(len(numbers))
    np.maximum.at(slowest, place, taken)
    warmup, window = np.zeros(len(numbers), dtype=bool), np.full(len(numbers), -1)
    np.logical_or.at(warmup, place, stored.warmup)
    np.maximum.at(window, place, stored.window)
    # What leads into a window belongs to neither.
    drawn = ~warmup | (window < 0)
    slowest, warmup = slowest[drawn], warmup[drawn]
    is_thinned = len(slowest) > most
    places = np.linspace(0, len(slowest) - 1, most).round().astype(int) if is_thinned else slice(None)
    shown, shown_warmup = slowest[places], warmup[places]
    return StepSeries(
        repeat=record.repeat,
        p50=record.step_s.p50 if record.step_s else None,
        seconds=tuple(float(value) for value in shown),
        n_warmup=int(shown_warmup.sum()),
        thinned_from=len(slowest) if is_thinned else None,
    )


def _damaged_files(stored: StoredRun) -> Iterator[LeftOut]:
    for record in stored.records:
        # The files of a repeat that failed are those of whatever was tried last.
        if record.status in ("ok", "implausible"):
            for name, why in stored.damaged_files(record):
                yield LeftOut(where=f"{record.case}/{record.repeat}/{name}", why=why, is_damage=True)


def _rescue(path: Path) -> Run:
    documents = read_documents(path)
    head = documents.head
    left_out = [LeftOut(where=name, why=f"{why}; shown as missing") for name, why in documents.damaged]
    stored = StoredRun(
        path=path,
        run=str(head.get("run", path.resolve().name)),
        spec_hash=str(head.get("spec_hash", "")),
        created_utc=str(head.get("created_utc", "")),
        experiment=documents.experiment,
        environment=documents.environment,
        records=_records(path, head.get("run"), left_out),
        n_superseded=0,
        torn=False,
        damaged=(),
    )
    return Run(
        name=stored.run, stored=stored, left_out=tuple(replace(item, is_damage=True) for item in left_out)
    )


def _records(path: Path, run: object, left_out: list[LeftOut]) -> tuple[Record, ...]:
    """The usable lines; of two about the same repeat the later one counts.

    Args:
        run: whose records count; None where that is lost.
    """
    by_repeat: dict[tuple[str, int], Record] = {}
    counts: Counter[tuple[str, int]] = Counter()
    n_damaged = 0
    # Before the results: a run that goes on writes it after them.
    index = read_index(path / RESULTS)
    try:
        for number, line in read_lines(path):
            where = f"{RESULTS} line {number}"
            record = _record(line, where, left_out) if line.strip() else None
            if record is not None:
                counts[record.case, record.repeat] += 1
            elif line.strip():
                n_damaged += 1
            if record is not None and run is not None and record.run != run:
                why = f"must be of the run {run}, got a record of {record.run!r:.80}; the line is left out"
                left_out.append(LeftOut(where=where, why=why))
            elif record is not None:
                by_repeat[record.case, record.repeat] = record
    except (StoreError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        why = f"cannot be read ({reason}); there are no more results"
        left_out.append(LeftOut(where=RESULTS, why=why))
        if not isinstance(error, FileNotFoundError):
            # Lines that cannot be read are not gone.
            return tuple(by_repeat.values())
    lost = lost_lines(path / RESULTS, index, counts, n_damaged=n_damaged)
    if lost is not None:
        left_out.append(LeftOut(where=lost.file, why=lost.why))
    return tuple(by_repeat.values())


def _record(line: bytes, where: str, left_out: list[LeftOut]) -> Record | None:
    """One line; a damaged field that may be missing is nulled, anything else costs the line."""
    damaged: list[str] = []
    while True:
        try:
            return from_json(line, without=damaged)
        except StoreError as error:
            field = (error.field or "").split(".")[0]
            if field not in _NULLABLE:
                left_out.append(LeftOut(where=where, why=f"{error}; the line is left out"))
                return None
            left_out.append(LeftOut(where=where, why=f"{error}; shown as missing"))
            # The field was there before, so every turn of the loop has one field less to leave out.
            damaged.append(field)
