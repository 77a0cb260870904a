"""The run folder: created, locked, appended to, repaired after a kill, and read back."""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from harness.atomic_files import sync_directory, write_json, write_text
from harness.canonical import JsonValue, canonical_hash, json_value, slug
from harness.errors import StoreError, UsageError
from harness.records import Record
from harness.results_file import newest_of_each, read_results, repair
from harness.steps_file import Steps, read_steps, write_steps

# `Steps` and its reader are part of what a stored run offers, though they have a file of their own.
__all__ = ["RunFolder", "Steps", "StoredRun", "load_run", "open_run", "read_steps"]

RUN_SCHEMA = 1

LOCK_FILE = ".lock"
RUN_FILE = "run.json"
_CASES = "cases"
_RESULTS = "results.jsonl"
_EXPERIMENT = "experiment.yaml"
_ENVIRONMENT = "environment.json"
_REPORT = "report.html"
_STEPS = "steps.parquet"
_PLAN = "plan.json"
_TRACE = "trace.json"
CHECKPOINT = "checkpoint"
# Only these count as results; a case that failed or never started is tried again on resume.
_DONE = ("ok", "implausible")


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
        return self.path / _CASES / record.case / str(record.repeat)

    def steps(self, record: Record) -> Steps | None:
        """Steps of one record, or None where none were stored."""
        path = self.repeat_dir(record) / _STEPS
        return read_steps(path) if path.is_file() else None


class RunFolder:
    """A run folder held by this process alone, open for appending. Use as a context manager."""

    def __init__(self, path: Path, *, lock: int) -> None:
        self.path = path
        self._lock = lock
        self._results = -1
        self.run = ""
        self.records: tuple[Record, ...] = ()

    @property
    def done(self) -> frozenset[tuple[str, int]]:
        """Case ids and repeats that have a result and need no further run."""
        return frozenset((record.case, record.repeat) for record in self.records if record.status in _DONE)

    @property
    def report_path(self) -> Path:
        """Where the run's own HTML report goes."""
        return self.path / _REPORT

    @property
    def cases(self) -> Path:
        """The folder of what each case leaves, made if need be."""
        path = self.path / _CASES
        path.mkdir(exist_ok=True)
        return path

    def repeat_dir(self, case: str, repeat: int) -> Path:
        """Make and name the folder of one case and repeat."""
        path = self.cases / case / str(repeat)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def worker_log(self, case: str, repeat: int, rank: int) -> Path:
        """Name the log file of one worker in one case and repeat."""
        return self.repeat_dir(case, repeat) / f"worker-{rank}.log"

    def checkpoint(self, case: str, repeat: int) -> Path:
        """Name the folder of the checkpoint of one case and repeat."""
        return self.repeat_dir(case, repeat) / CHECKPOINT

    def append(self, record: Record) -> None:
        """Add one line to `results.jsonl`; it is on disk when this returns.

        Raises:
            StoreError: the line could not be written; the lines before it are as they were.
        """
        line = record.to_json().encode() + b"\n"
        size = os.fstat(self._results).st_size
        try:
            while line:
                line = line[os.write(self._results, line) :]
            os.fsync(self._results)
        except OSError as error:
            # Half a line on a full disk must not be what the next record is appended to.
            os.ftruncate(self._results, size)
            raise StoreError(
                f"{self.path / _RESULTS} must take another line, got {error.strerror}; make room and go on "
                "with --resume",
                field="out",
            ) from None
        self.records = newest_of_each((*self.records, record))

    def write_plan(self, case: str, repeat: int, plan: object) -> Path:
        """Store the plan that a case ran by."""
        return write_json(self.repeat_dir(case, repeat) / _PLAN, plan)

    def write_steps(self, case: str, repeat: int, steps: Steps) -> Path:
        """Store the steps of one case and repeat."""
        return write_steps(self.repeat_dir(case, repeat) / _STEPS, steps)

    def write_trace(self, case: str, repeat: int, document: Mapping[str, JsonValue]) -> Path:
        """Store the traced step of one case and repeat."""
        return write_text(self.repeat_dir(case, repeat) / _TRACE, json.dumps(document) + "\n")

    def write_report(self, html: str) -> Path:
        """Store the run's HTML report."""
        return write_text(self.report_path, html)

    def close(self) -> None:
        """Let go of the folder."""
        if self._results >= 0:
            os.close(self._results)
            self._results = -1
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open_results(self) -> None:
        path = self.path / _RESULTS
        repair(path)
        self._results = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        sync_directory(self.path)


def open_run(
    out: Path | None,
    *,
    experiment: Mapping[str, JsonValue],
    environment: Mapping[str, JsonValue],
    resume: bool = False,
    runs: Path = Path("runs"),
) -> RunFolder:
    """Create a run folder, or take up an earlier one.

    Args:
        out: the folder itself; None for `runs/<experiment>-<utc>-<id>`.
        experiment: the resolved experiment, with its `name`; a resumed run must have the same.
        environment: facts for `environment.json`.
        resume: take up the run that lies in `out`; an absent or empty folder starts a new one.
        runs: parent of folders that are named here.
    Returns:
        The folder, locked; close it.
    Raises:
        UsageError: not empty without `resume`, another spec, in use, or not writable.
        StoreError: `results.jsonl` is damaged other than at its end.
    """
    now = datetime.now(UTC)
    name = slug(str(experiment["name"]))
    run = f"{name}-{now:%Y%m%dt%H%M%Sz}-{secrets.token_hex(4)}"
    path = out if out is not None else runs / run
    spec_hash = canonical_hash(experiment)
    folder = RunFolder(path, lock=hold(path))
    try:
        if not _is_empty(path):
            _check_resumable(path, spec_hash=spec_hash, resume=resume)
        if (path / RUN_FILE).is_file():
            folder.run = str(_read_mapping(path / RUN_FILE)["run"])
        else:
            folder.run = run
            head = {"run": run, "spec_hash": spec_hash, "created_utc": now.isoformat(timespec="seconds")}
            _describe(path, head=head, experiment=experiment, environment=environment)
        folder._open_results()  # noqa: SLF001 - the other half of this constructor
        folder.records, _, _ = read_results(path / _RESULTS)
    except OSError as error:
        folder.close()
        raise _unwritable(path, error) from None
    except BaseException:
        folder.close()
        raise
    return folder


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
    head = _read_mapping(path / RUN_FILE)
    records, n_superseded, torn = read_results(path / _RESULTS)
    environment = path / _ENVIRONMENT
    return StoredRun(
        path=path,
        run=str(head.get("run")),
        spec_hash=str(head.get("spec_hash")),
        created_utc=str(head.get("created_utc")),
        experiment=_read_yaml(path / _EXPERIMENT),
        environment=_read_mapping(environment) if environment.is_file() else {},
        records=records,
        n_superseded=n_superseded,
        torn=torn,
    )


def hold(path: Path) -> int:
    """Take a run folder for this process alone, made if need be; closing the descriptor lets it go.

    Raises:
        UsageError: another process has it, or it cannot be written to.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise _unwritable(path, error) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise UsageError(
            f"{path} is in use by another run; wait for it or name another folder", field="out"
        ) from None
    return lock


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"the run folder must be writable, got {error.strerror or error} for {path}; "
        "choose another with --out",
        field="out",
    )


def _is_empty(path: Path) -> bool:
    return all(item.name == LOCK_FILE for item in path.iterdir())


def _check_resumable(path: Path, *, spec_hash: str, resume: bool) -> None:
    if not resume:
        raise UsageError(
            f"{path} is not empty; add --resume to go on with it or name another folder", field="out"
        )
    if not (path / RUN_FILE).is_file():
        if _started_only(path):
            return
        raise UsageError(
            f"{path} is not a run folder (no {RUN_FILE}); name another folder with --out", field="out"
        )
    stored = _read_mapping(path / RUN_FILE).get("spec_hash")
    if stored != spec_hash:
        raise UsageError(
            f"--resume needs the same experiment, got spec {spec_hash[:12]} for a folder of "
            f"{str(stored)[:12]}; use its own {path / _EXPERIMENT} or name another folder",
            field="out",
        )


def _started_only(path: Path) -> bool:
    # Killed while the folder was being described: nothing was measured yet, so nothing can be lost.
    ours = {LOCK_FILE, _EXPERIMENT, _ENVIRONMENT}
    return all(item.name in ours or re.fullmatch(r"\.[\w.]+\.tmp", item.name) for item in path.iterdir())


def _describe(
    path: Path,
    *,
    head: Mapping[str, str],
    experiment: Mapping[str, JsonValue],
    environment: Mapping[str, JsonValue],
) -> None:
    import yaml

    write_text(
        path / _EXPERIMENT, yaml.safe_dump(json_value(experiment), sort_keys=False, allow_unicode=True)
    )
    write_json(path / _ENVIRONMENT, environment)
    # Last: a folder with this file is complete.
    write_json(path / RUN_FILE, {"schema": RUN_SCHEMA, **head})


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
            f"{path} must be a YAML file written by stratbench: {str(error).splitlines()[0]}"
        ) from None
    if not isinstance(document, dict):
        raise StoreError(f"{path} must hold a mapping, got {type(document).__name__}")
    return document
