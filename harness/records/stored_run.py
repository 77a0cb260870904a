"""Reader of a run folder, also during its run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from harness.canonical import JsonValue
from harness.errors import StoreError
from harness.records.checksums import file_checksum, require_unchanged
from harness.records.contained_files import MOST_BYTES, is_inside, read_inside, written_files
from harness.records.predictions import StoredPrediction, read_predictions
from harness.records.record import Record
from harness.records.results_file import Damage, Results, newest_of_each, read_results
from harness.records.run_documents import (
    CASES,
    ENVIRONMENT,
    EXPERIMENT,
    PLAN,
    PREDICTIONS,
    PROFILE,
    RESULTS,
    RUN_FILE,
    STEPS,
    TRACE,
    read_environment,
    read_experiment,
    read_head,
)
from harness.records.safe_text import log_tail
from harness.records.steps_file import Steps, read_steps

__all__ = ["StoreError", "StoredRun", "load_run", "require_run"]
"""With the error that all of it raises, for readers that import nothing else of the harness."""

_WORKER_LOG = re.compile(r"worker-\d+\.log")
_LEFT_OUT = "the line is left out"
_AS_MISSING = "shown as missing"
_Value = TypeVar("_Value")


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredRun:
    """A run folder as read back, damaged or not.

    Args:
        run: name of the folder if its own document is damaged.
        experiment: the resolved experiment; empty if damaged.
        environment: facts of the machine; empty if damaged.
        records: the newest record of each case and repeat, in the order they were first written.
        n_superseded: number of older records of the same case and repeat, left out of `records`.
        torn: True if the last line is incomplete (the run was killed while writing), and left out.
        damaged: missing or damaged documents, lines, fields and records.
        predictions: case → its predicted step; without cases that are not predicted.
    """

    path: Path
    run: str
    spec_hash: str
    created_utc: str
    experiment: Mapping[str, JsonValue]
    environment: Mapping[str, JsonValue]
    records: tuple[Record, ...]
    n_superseded: int
    torn: bool
    damaged: tuple[Damage, ...]
    predictions: Mapping[str, StoredPrediction] = field(default_factory=dict)

    def repeat_dir(self, record: Record) -> Path:
        return self.path / CASES / record.case / str(record.repeat)

    def steps(self, record: Record) -> Steps | None:
        data = self.file(record, STEPS)
        return None if data is None else read_steps(data, name=self.name_of(record, STEPS))

    def file(self, record: Record, name: str, *, most_bytes: int = MOST_BYTES) -> bytes | None:
        """Content of a file of one record's repeat; None if there is none.

        Raises:
            StoreError: it is not as it was written, is not in the run folder, is longer than `most_bytes`, or
                cannot be read.
        """
        place = (CASES, record.case, str(record.repeat), name)
        try:
            data = read_inside(self.path, *place, most_bytes=most_bytes)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{self.name_of(record, name)} must be readable, got {error.strerror}") from None
        stored = record.file_checksums.get(name)
        if stored is not None:
            require_unchanged(file_checksum(data), stored, name=self.name_of(record, name))
        return data

    def has_file(self, record: Record, name: str) -> bool:
        return is_inside(self.path, CASES, record.case, str(record.repeat), name)

    def worker_logs(self, record: Record) -> tuple[str, ...]:
        """Names of the logs of one record's repeat that are not empty, in the order of last writing.

        Raises:
            StoreError: the folder is not inside the run folder.
        """
        try:
            names = written_files(self.path, CASES, record.case, str(record.repeat))
        except OSError:
            return ()
        return tuple(name for name in names if _WORKER_LOG.fullmatch(name))

    def log_tail(self, record: Record, name: str, *, n_lines: int) -> tuple[str, ...]:
        """Last lines of a log of one record's repeat, safe to print.

        Raises:
            StoreError: it is no file of the run folder, or cannot be read.
        """
        try:
            return log_tail(self.path, CASES, record.case, str(record.repeat), name, n_lines=n_lines)
        except OSError as error:
            raise StoreError(f"{self.name_of(record, name)} must be readable, got {error.strerror}") from None

    @staticmethod
    def name_of(record: Record, name: str) -> str:
        return f"{CASES}/{record.case}/{record.repeat}/{name}"

    def damaged_files(self, record: Record) -> Iterator[tuple[str, str]]:
        """Name and reason of each damaged file of one record."""
        for name in (PLAN, STEPS, TRACE, PROFILE):
            if name in record.file_checksums:
                try:
                    is_there = self.file(record, name) is not None
                except StoreError as error:
                    yield name, str(error)
                else:
                    if not is_there:
                        yield name, "must be there, got nothing: it was removed after it was written"


def load_run(path: Path) -> StoredRun:
    """Read a run folder without changing it, even during its run or if parts of it are damaged.

    Raises:
        StoreError: it is not a run folder.
    """
    require_run(path)
    damaged: list[Damage] = []
    head = _document(RUN_FILE, lambda: read_head(path), damaged)
    experiment = _document(EXPERIMENT, lambda: read_experiment(path, head), damaged)
    environment = _document(ENVIRONMENT, lambda: read_environment(path, head), damaged)
    predictions = _document(PREDICTIONS, lambda: read_predictions(path), damaged)
    results = _results(path, damaged)
    records = _records(results, head.get("run"), damaged)
    if results.lost is not None:
        damaged.append(results.lost)
    newest = newest_of_each(records)
    return StoredRun(
        path=path,
        run=str(head.get("run", path.resolve().name)),
        spec_hash=str(head.get("spec_hash", "")),
        created_utc=str(head.get("created_utc", "")),
        experiment=experiment,
        environment=environment,
        records=newest,
        n_superseded=len(records) - len(newest),
        torn=any(line.is_torn for line in results.lines),
        damaged=tuple(damaged),
        predictions=predictions,
    )


def _document(name: str, read: Callable[[], dict[str, _Value]], damaged: list[Damage]) -> dict[str, _Value]:
    try:
        return read()
    except StoreError as error:
        damaged.append(Damage(where=name, why=f"{error}; {_AS_MISSING}"))
        return {}


def _results(path: Path, damaged: list[Damage]) -> Results:
    try:
        return read_results(path / RESULTS)
    except (StoreError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        damaged.append(Damage(where=RESULTS, why=f"cannot be read ({reason}); there are no results"))
        return Results()


def _records(results: Results, run: JsonValue, damaged: list[Damage]) -> Sequence[Record]:
    """Usable records, superseded ones included.

    Args:
        run: id of the run, which records must have; None if lost.
    """
    records: list[Record] = []
    for line in results.lines:
        whys = () if line.is_torn else line.why
        fate = _LEFT_OUT if line.record is None else _AS_MISSING
        if line.record is not None and run not in (None, line.record.run):
            whys, fate = (f"must be of the run {run}, got a record of {line.record.run!r:.80}",), _LEFT_OUT
        elif line.record is not None:
            records.append(line.record)
        damaged += [Damage(where=f"{RESULTS} line {line.number}", why=f"{why}; {fate}") for why in whys]
    return records


def require_run(path: Path) -> None:
    """Require the folder of a run.

    Raises:
        StoreError: the folder is not one of a run.
    """
    if not (path / RUN_FILE).is_file():
        why = f"no {RUN_FILE} in it" if path.is_dir() else "no such folder"
        raise StoreError(
            f"must be a run folder made by `stratbench run`, got {str(path)!r} ({why})", field="run_dir"
        )
