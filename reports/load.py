"""Run folders as frozen values with legible text, and a list of their unusable parts."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar, cast

import numpy as np

from harness.canonical import field_names
from harness.records.predictions import StoredPrediction
from harness.records.record import Record
from harness.records.run_documents import RESULTS, STEPS
from harness.records.safe_text import cut, printable, redacted
from harness.records.stored_run import StoredRun, StoreError, load_run
from reports.rows.parts import StepSeries
from reports.rows.report import LeftOut

Value = TypeVar("Value")
MOST_LETTERS = 2_000
"""Most characters of any text; the middle of a longer one is left out."""


def legible(text: str) -> str:
    """Text on one line, with control characters spelt out, cut to a limit."""
    if len(text) > MOST_LETTERS:
        # A secret that is cut is no longer recognised as one, so it is redacted first.
        text = cut(redacted(text), most=MOST_LETTERS)
    return printable(text)


def legible_document(document: Mapping[str, Value]) -> dict[str, Value]:
    """Nested mappings and lists with legible text, including keys."""
    return {legible(str(key)): cast("Value", _legible_value(value)) for key, value in document.items()}


def legible_left_out(item: LeftOut) -> LeftOut:
    """Unusable part with legible text."""
    return dataclasses.replace(item, where=legible(item.where), why=legible(item.why))


_NUMBERS = {float, int, type(None)}


def _legible_value(value: object) -> object:
    """Legible value; the same object if nothing changes, as in nearly all of thousands of records."""
    if value is None or isinstance(value, float | int):
        return value
    if isinstance(value, str):
        return legible(value)
    if isinstance(value, tuple | list):
        items = value if _NUMBERS.issuperset(map(type, value)) else [_legible_value(item) for item in value]
        return value if all(map(operator.is_, items, value)) else type(value)(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changes = {
            name: changed
            for name in field_names(type(value))
            if type(item := getattr(value, name)) not in _NUMBERS
            and (changed := _legible_value(item)) is not item
        }
        return dataclasses.replace(value, **changes) if changes else value
    if isinstance(value, Mapping):
        changed = {_legible_value(key): _legible_value(item) for key, item in value.items()}
        return value if changed == value else changed
    # YAML has dates, sets and bytes, which experiments do not use.
    return legible(str(value))


MAX_SHOWN_STEPS = 400
MAX_SHOWN_REPEATS = 20
"""Most repeats of a strategy with single steps shown, evenly spread over the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run folder, and its unusable parts."""

    name: str
    stored: StoredRun
    left_out: tuple[LeftOut, ...]

    @property
    def records(self) -> tuple[Record, ...]:
        """Newest record of each case and repeat."""
        return self.stored.records

    @property
    def experiment(self) -> Mapping[str, object]:
        """Resolved experiment; empty if it is lost."""
        return self.stored.experiment


def load(path: Path, *, with_files: bool = False) -> Run:
    """Read a run folder, damaged or not.

    Args:
        with_files: True to compare plans, steps and traces with their checksums too.
    Raises:
        harness.errors.StoreError: `path` is not a run folder.
    """
    stored = load_run(path)
    left_out = [LeftOut(where=item.where, why=item.why, is_damage=True) for item in stored.damaged]
    if stored.torn:
        left_out.append(
            LeftOut(where=f"{RESULTS}, last line", why="incomplete: the run ended while writing it")
        )
    if stored.n_superseded:
        older = "1 older record" if stored.n_superseded == 1 else f"{stored.n_superseded} older records"
        left_out.append(LeftOut(where=RESULTS, why=f"{older} of repeats that were run again"))
    if with_files:
        left_out.extend(_damaged_files(stored))
    for record in stored.records:
        left_out.extend(_odd_rounds(record))
    return _legible(Run(name=stored.run, stored=stored, left_out=tuple(left_out)))


def _odd_rounds(record: Record) -> Iterator[LeftOut]:
    """Rounds without a positive time, which comparisons leave out."""
    rounds = record.rounds
    if rounds is None:
        return
    for name, steps_s in (("step_s", rounds.step_s), ("baseline_step_s", rounds.baseline_step_s or ())):
        odd = [step_s for step_s in steps_s if not 0.0 < step_s < math.inf]
        if odd:
            why = f"rounds.{name}: must be above 0, got {odd[0]!r}; {len(odd)} such rounds are left out"
            yield LeftOut(where=f"{record.case}/{record.repeat}", why=why)


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
            records=tuple(cast("Record", _legible_value(record)) for record in stored.records),
            predictions={
                case: cast("StoredPrediction", _legible_value(prediction))
                for case, prediction in stored.predictions.items()
            },
        ),
        left_out=tuple(map(legible_left_out, run.left_out)),
    )


def read_steps(run: Run, record: Record, *, most: int = MAX_SHOWN_STEPS) -> StepSeries | LeftOut:
    """Step times of one repeat: of the slowest worker of each step, in order, thinned evenly for display.

    Args:
        most: maximum number of steps to return.
    Returns:
        The steps, or the reason why there are none.
    """
    where = f"{record.case}/{record.repeat}/{STEPS}"
    try:
        stored = run.stored.steps(record)
    except StoreError as error:
        return LeftOut(where=where, why=f"{error}; step times are not shown")
    if stored is None:
        return LeftOut(where=where, why="missing; step times are not shown")
    durations_s = stored.end_s - stored.start_s
    if not (np.isfinite(durations_s) & (durations_s > 0)).all():
        return LeftOut(where=where, why="has steps that end before they start; step times are not shown")
    numbers, place = np.unique(stored.step, return_inverse=True)
    slowest = np.zeros(len(numbers))
    np.maximum.at(slowest, place, durations_s)
    warmup, window = np.zeros(len(numbers), dtype=bool), np.full(len(numbers), -1)
    np.logical_or.at(warmup, place, stored.warmup)
    np.maximum.at(window, place, stored.window)
    # Steps that lead into a window belong neither to it nor to the warm-up.
    is_counted = ~warmup | (window < 0)
    slowest, warmup = slowest[is_counted], warmup[is_counted]
    is_thinned = len(slowest) > most
    places = np.linspace(0, len(slowest) - 1, most).round().astype(int) if is_thinned else slice(None)
    return StepSeries(
        repeat=record.repeat,
        p50=record.median_step_s,
        unit=record.timed_unit,
        seconds=tuple(slowest[places].tolist()),
        n_warmup=int(warmup[places].sum()),
        thinned_from=len(slowest) if is_thinned else None,
    )


def _damaged_files(stored: StoredRun) -> Iterator[LeftOut]:
    for record in stored.records:
        # The files of a failed repeat are those of its last attempt.
        if record.status in ("ok", "implausible"):
            for name, why in stored.damaged_files(record):
                yield LeftOut(where=f"{record.case}/{record.repeat}/{name}", why=why, is_damage=True)
