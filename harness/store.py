"""A run folder as read back, also while its run goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.canonical import JsonValue
from harness.errors import StoreError
from harness.record_json import from_json
from harness.records import Record
from harness.results_file import read_results
from harness.run_documents import read_environment, read_experiment, read_head
from harness.run_layout import CASES, RESULTS, RUN_FILE, STEPS
from harness.steps_file import Steps, read_steps


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredRun:
    """A run folder as read back.

    Args:
        experiment: the resolved experiment.
        records: the newest record of each case and repeat, in the order they were first written.
        n_superseded: older records of the same case and repeat, left out of `records`.
        torn: whether the last line was incomplete (a run killed while writing) and left out.
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

    def repeat_dir(self, record: Record) -> Path:
        """Folder of one record's plan, steps and logs."""
        return self.path / CASES / record.case / str(record.repeat)

    def steps(self, record: Record) -> Steps | None:
        """Steps of one record, or None where none were stored."""
        path = self.repeat_dir(record) / STEPS
        return read_steps(path) if path.is_file() else None


def load_run(path: Path) -> StoredRun:
    """Read a run folder without changing it; also while its run goes on.

    Raises:
        StoreError: not a run folder, or damaged other than in the last line.
    """
    require_run(path)
    head = read_head(path)
    records, n_superseded, torn = read_results(path / RESULTS)
    return StoredRun(
        path=path,
        run=str(head.get("run")),
        spec_hash=str(head.get("spec_hash")),
        created_utc=str(head.get("created_utc")),
        experiment=read_experiment(path),
        environment=read_environment(path),
        records=records,
        n_superseded=n_superseded,
        torn=torn,
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


def read_record(line: bytes) -> Record:
    """Read one line of `results.jsonl`, for a reader that goes on where another line is damaged.

    Raises:
        StoreError: for anything that is not a record this version understands; it names the field.
    """
    return from_json(line)
