"""A run folder as read back, also while its run goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.canonical import JsonValue
from harness.errors import StoreError, first_line
from harness.records import Record
from harness.results_file import read_results
from harness.run_layout import CASES, ENVIRONMENT, EXPERIMENT, RESULTS, RUN_FILE, STEPS
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
    if not (path / RUN_FILE).is_file():
        why = f"no {RUN_FILE} in it" if path.is_dir() else "no such folder"
        raise StoreError(
            f"must be a run folder made by `stratbench run`, got {str(path)!r} ({why})", field="run_dir"
        )
    head = read_head(path)
    records, n_superseded, torn = read_results(path / RESULTS)
    environment = path / ENVIRONMENT
    return StoredRun(
        path=path,
        run=str(head.get("run")),
        spec_hash=str(head.get("spec_hash")),
        created_utc=str(head.get("created_utc")),
        experiment=_read_yaml(path / EXPERIMENT),
        environment=_read_mapping(environment) if environment.is_file() else {},
        records=records,
        n_superseded=n_superseded,
        torn=torn,
    )


def read_head(path: Path) -> dict[str, JsonValue]:
    """Read what a run folder is: its run, the hash of its experiment, and when it was made.

    Raises:
        StoreError: it cannot be read.
    """
    return _read_mapping(path / RUN_FILE)


def _read_mapping(path: Path) -> dict[str, JsonValue]:
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} must be a JSON file written by stratbench: {error}") from None
    if not isinstance(document, dict):
        raise StoreError(f"{path} must hold a JSON object, got {type(document).__name__}")
    return document


def _read_yaml(path: Path) -> dict[str, JsonValue]:
    import yaml

    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise StoreError(
            f"{path} must be a YAML file written by stratbench: {first_line(str(error))}"
        ) from None
    if not isinstance(document, dict):
        raise StoreError(f"{path} must hold a mapping, got {type(document).__name__}")
    return document
