"""A run folder as read back, also while its run goes on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.canonical import JsonValue
from harness.errors import StoreError
from harness.records.checksums import file_checksum, require_unchanged
from harness.records.contained_files import MOST_BYTES, checksum_inside, is_inside, read_inside, written_files
from harness.records.record import Record
from harness.records.results_file import DamagedLine, Lost, lost_lines, read_index, read_results, result_lines
from harness.records.run_documents import (
    CASES,
    ENVIRONMENT,
    EXPERIMENT,
    PLAN,
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

__all__ = [
    "Documents",
    "StoreError",
    "StoredRun",
    "load_run",
    "lost_lines",
    "read_documents",
    "read_index",
    "read_lines",
    "require_run",
]
"""With the error that all of it raises, for readers that know nothing else of the harness."""

_WORKER_LOG = re.compile(r"worker-\d+\.log")


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredRun:
    """A run folder as read back.

    Args:
        experiment: the resolved experiment.
        records: the newest record of each case and repeat, in the order they were first written.
        n_superseded: older records of the same case and repeat, left out of `records`.
        torn: whether the last line was incomplete (a run killed while writing) and left out.
        damaged: other lines that were left out.
        lost: what lines are gone that were written; None where none is.
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
    damaged: tuple[DamagedLine, ...]
    lost: Lost | None = None

    def repeat_dir(self, record: Record) -> Path:
        return self.path / CASES / record.case / str(record.repeat)

    def steps(self, record: Record) -> Steps | None:
        data = self.file(record, STEPS)
        return None if data is None else read_steps(data, name=self.name_of(record, STEPS))

    def file(self, record: Record, name: str, *, most_bytes: int = MOST_BYTES) -> bytes | None:
        """Content of a file in the folder of one record's repeat, or None where there is none.

        Raises:
            StoreError: it is not what was written, does not lie in the run folder, is longer than that, or
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
        """Names of the logs in the folder of one record's repeat that are not empty, the last written last.

        Raises:
            StoreError: the folder is none of the run folder's.
        """
        try:
            names = written_files(self.path, CASES, record.case, str(record.repeat))
        except OSError:
            return ()
        return tuple(name for name in names if _WORKER_LOG.fullmatch(name))

    def log_tail(self, record: Record, name: str, *, n_lines: int) -> tuple[str, ...]:
        """Last lines of a log in the folder of one record's repeat, fit to be shown.

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
        """Name and reason of each file of one record that is not as it was written."""
        for name in (PLAN, STEPS, TRACE):
            if name in record.file_checksums:
                try:
                    actual = checksum_inside(self.path, CASES, record.case, str(record.repeat), name)
                    stored = record.file_checksums[name]
                    require_unchanged(actual, stored, name=self.name_of(record, name))
                except StoreError as error:
                    yield name, str(error)
                except OSError as error:
                    yield name, f"cannot be read ({error.strerror})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Documents:
    """Readable documents of a run folder beside its results; the rest is empty.

    Attributes:
        damaged: name and reason of each that cannot be read, or is not what was written.
    """

    head: Mapping[str, JsonValue]
    experiment: Mapping[str, JsonValue]
    environment: Mapping[str, JsonValue]
    damaged: tuple[tuple[str, str], ...]


def read_documents(path: Path) -> Documents:
    """Read the documents of a run folder, each by itself."""
    damaged: list[tuple[str, str]] = []

    def read(name: str, reader: Callable[[], dict[str, JsonValue]]) -> dict[str, JsonValue]:
        try:
            return reader()
        except StoreError as error:
            damaged.append((name, str(error)))
            return {}

    head = read(RUN_FILE, lambda: read_head(path))
    experiment = read(EXPERIMENT, lambda: read_experiment(path, head))
    environment = read(ENVIRONMENT, lambda: read_environment(path, head))
    return Documents(head=head, experiment=experiment, environment=environment, damaged=tuple(damaged))


def load_run(path: Path) -> StoredRun:
    """Read a run folder without changing it; also while its run goes on.

    Raises:
        StoreError: not a run folder, of a later version, or with a damaged document.
    """
    require_run(path)
    head = read_head(path)
    results = read_results(path / RESULTS)
    return StoredRun(
        path=path,
        run=str(head.get("run")),
        spec_hash=str(head.get("spec_hash")),
        created_utc=str(head.get("created_utc")),
        experiment=read_experiment(path, head),
        environment=read_environment(path, head),
        records=results.records,
        n_superseded=results.n_superseded,
        torn=results.torn,
        damaged=results.damaged,
        lost=results.lost,
    )


def require_run(path: Path) -> None:
    """Look whether a folder is one of a run.

    Raises:
        StoreError: it is not.
    """
    if not (path / RUN_FILE).is_file():
        why = f"no {RUN_FILE} in it" if path.is_dir() else "no such folder"
        raise StoreError(
            f"must be a run folder made by `stratbench run`, got {str(path)!r} ({why})", field="run_dir"
        )


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Number and content of each line of a run folder's results, cut where it is longer than any record.

    Raises:
        StoreError: they do not lie in the folder. OSError: they cannot be read.
    """
    for line in result_lines(path / RESULTS):
        yield line.number, line.content
