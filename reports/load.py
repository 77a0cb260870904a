"""A run folder as frozen values; what cannot be used is said, never dropped in silence."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from harness.records import Record
from harness.store import StoredRun, load_run, read_record
from reports.rows import LeftOut, Steps

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


def load(path: Path) -> Run:
    """Read a run folder, damaged or not.

    Raises:
        harness.errors.StoreError: when `path` is no run folder at all.
    """
    try:
        stored = load_run(path)
    except Exception:
        # Whatever is wrong with one file, the others may still make a report; without run.json there is no
        # run to report on.
        if not (path / "run.json").is_file():
            raise
        return _rescue(path)
    left_out = []
    if stored.torn:
        left_out.append(
            LeftOut(where="results.jsonl, last line", why="incomplete: the run ended while writing it")
        )
    if stored.n_superseded:
        left_out.append(
            LeftOut(
                where="results.jsonl",
                why=f"{stored.n_superseded} older records of repeats that were run again",
            )
        )
    return Run(name=stored.run, stored=stored, left_out=tuple(left_out))


def read_steps(run: Run, record: Record) -> Steps | LeftOut:
    """Step times of one repeat: per step the slowest worker's, in order, thinned evenly for display.

    Returns:
        The steps, or why there are none.
    """
    where = f"{record.case}/{record.repeat}/steps.parquet"
    if Path(record.case).name != record.case or record.case in ("", ".", ".."):
        return LeftOut(where=where, why="the case id is not the name of a folder; step times are not shown")
    try:
        stored = run.stored.steps(record)
    except Exception as error:  # noqa: BLE001 - reports may not import the class of store's errors; any of them means the same
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
    warmup = np.zeros(len(numbers), dtype=bool)
    np.logical_or.at(warmup, place, stored.warmup)
    every = -(-len(slowest) // MAX_SHOWN_STEPS) or 1
    shown, shown_warmup = slowest[::every], warmup[::every]
    return Steps(
        repeat=record.repeat,
        p50=record.step_s.p50 if record.step_s else None,
        seconds=tuple(float(value) for value in shown),
        n_warmup=int(shown_warmup.sum()),
        thinned_from=len(slowest) if every > 1 else None,
    )


def _rescue(path: Path) -> Run:
    """Read a damaged run folder line by line and file by file."""
    left_out: list[LeftOut] = []
    head = _document(path / "run.json", left_out)
    stored = StoredRun(
        path=path,
        run=str(head.get("run", path.resolve().name)),
        spec_hash=str(head.get("spec_hash")),
        created_utc=str(head.get("created_utc")),
        experiment=_document(path / "experiment.yaml", left_out),
        environment=_document(path / "environment.json", left_out),
        records=_records(path / "results.jsonl", left_out),
        n_superseded=0,
        torn=False,
    )
    return Run(name=stored.run, stored=stored, left_out=tuple(left_out))


def _records(path: Path, left_out: list[LeftOut]) -> tuple[Record, ...]:
    """The usable lines; of two about the same repeat the later one counts."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        left_out.append(
            LeftOut(where=path.name, why=f"cannot be read ({error.strerror}); there are no results")
        )
        return ()
    found: dict[tuple[str, int], Record] = {}
    for number, line in enumerate(lines, start=1):
        record = _record(line, f"{path.name} line {number}", left_out) if line.strip() else None
        if record is not None:
            found[record.case, record.repeat] = record
    return tuple(found.values())


def _record(line: bytes, where: str, left_out: list[LeftOut]) -> Record | None:
    """One line; a damaged field that may be missing is nulled, anything else costs the line."""
    while True:
        try:
            return read_record(line)
        except Exception as error:  # noqa: BLE001 - as above; a line that cannot be read is reported, whatever the reason
            damaged = str(getattr(error, "field", None) or "").split(".")[0]
            if damaged not in _NULLABLE:
                left_out.append(LeftOut(where=where, why=f"{error}; the line is left out"))
                return None
            left_out.append(LeftOut(where=where, why=f"{error}; shown as missing"))
            # The field was not null before, so every turn of the loop has one field less to null.
            line = json.dumps(json.loads(line) | {damaged: None}).encode()


def _document(path: Path, left_out: list[LeftOut]) -> dict[str, Any]:
    """A JSON or YAML object beside the records; a damaged one is said and read as empty."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        # JSON is not read as YAML: PyYAML takes 1e-9 for text.
        values = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except OSError as error:
        left_out.append(LeftOut(where=path.name, why=f"cannot be read ({error.strerror}); shown as missing"))
        return {}
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        reason = (str(error).splitlines() or ["no reason given"])[0]
        left_out.append(LeftOut(where=path.name, why=f"is damaged ({reason}); shown as missing"))
        return {}
    if not isinstance(values, dict):
        left_out.append(
            LeftOut(
                where=path.name, why=f"must hold an object, got {type(values).__name__}; shown as missing"
            )
        )
        return {}
    return {str(name): value for name, value in values.items()}
