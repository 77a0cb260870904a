"""Run folder of a run in progress: created, reopened, appended to; and removal of old ones."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from harness.atomic_files import is_unfinished, remove_unfinished, sync_directory, write_json, write_text
from harness.canonical import JsonValue, canonical_hash, writable
from harness.errors import MissingError, StoreError, UsageError
from harness.records.checksums import file_checksum
from harness.records.contained_files import make_folder, open_to_write, require_plain
from harness.records.record import Record, to_json
from harness.records.results_file import (
    Line,
    Results,
    index_line,
    newest_of_each,
    put_aside_outdated,
    read_results,
    repair,
    write_index,
)
from harness.records.run_documents import (
    CASES,
    CHECKPOINT,
    ENVIRONMENT,
    EXPERIMENT,
    FAILURE_LOG,
    INDEX,
    LOCK_FILE,
    PLAN,
    PROFILE,
    REPORT,
    RESULTS,
    RUN_FILE,
    STEPS,
    TRACE,
    default_name,
    describe,
    is_default_name,
    read_environment,
    read_experiment,
    read_head,
)
from harness.records.steps_file import Steps, write_steps
from harness.written_values import normalised


def lock_folder(path: Path) -> int:
    """Lock a run folder for this process, created if needed; closing the descriptor unlocks it.

    Raises:
        UsageError: another process has it, or it is not writable. StoreError: its lock is a link, or
            no regular file.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = open_to_write(path / LOCK_FILE)
    except OSError as error:
        raise unwritable(path, error) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise UsageError(
            f"{path} is in use by another run; wait for it or name another folder", field="out"
        ) from None
    return lock


def unwritable(path: Path, error: OSError) -> UsageError:
    """Error for a run folder that cannot be written to."""
    return UsageError(
        f"the run folder must be writable, got {error.strerror or error} for {path}; "
        "choose another with --out",
        field="out",
    )


# Only these count as results; a case that failed or never started is tried again on resume.
_DONE = ("ok", "implausible")


def done_in(records: Iterable[Record]) -> frozenset[tuple[str, int]]:
    """Case and number of each repeat with a result."""
    return frozenset((record.case, record.repeat) for record in records if record.status in _DONE)


_LEFT = ("time-budget", "fail-fast")
"""Types of errors of repeats that are left to a resumed run."""


def recorded_in(records: Iterable[Record]) -> set[tuple[str, int]]:
    """Case and number of each repeat that was not left to a resumed run."""
    return {
        (record.case, record.repeat)
        for record in records
        if record.error is None or record.error.type not in _LEFT
    }


class RunFolder:
    """A run folder locked by this process, for appending; a context manager.

    A new folder is removed if its run is refused before a case has started.
    """

    def __init__(self, path: Path, *, lock: int) -> None:
        self.path = path
        self._lock = lock
        self._results = -1
        self._index = -1
        self.run = ""
        self.is_new = False
        self.records: tuple[Record, ...] = ()
        self.put_aside: tuple[Line, ...] = ()
        self._counts: Counter[tuple[str, int]] = Counter()
        self._checksums: dict[Path, dict[str, str]] = {}

    @property
    def done(self) -> frozenset[tuple[str, int]]:
        return done_in(self.records)

    @property
    def report_path(self) -> Path:
        return self.path / REPORT

    @property
    def cases(self) -> Path:
        return make_folder(self.path, CASES)

    def repeat_dir(self, case: str, repeat: int) -> Path:
        return make_folder(self.path, CASES, case, str(repeat))

    def worker_log(self, case: str, repeat: int, rank: int) -> Path:
        return self.repeat_dir(case, repeat) / f"worker-{rank}.log"

    def begin_repeat(self, case: str, repeat: int) -> None:
        """Remove files of an earlier attempt that could be mistaken for this one's; logs are continued."""
        for name in (TRACE, PROFILE, STEPS, FAILURE_LOG):
            (self.repeat_dir(case, repeat) / name).unlink(missing_ok=True)
        # Its existence shows that this attempt has saved it.
        (self.checkpoint(case, repeat) / "checkpoint").unlink(missing_ok=True)

    def forget(self, outdated: Collection[Record]) -> None:
        """Treat repeats as not yet run, and move their lines to `results.jsonl.outdated`.

        Raises:
            OSError: the lines could not be moved.
        """
        outdated_keys = {(record.case, record.repeat) for record in outdated}
        if not outdated_keys:
            return
        for slot in outdated_keys:
            del self._counts[slot]
        write_index(self.path / RESULTS, self._counts)
        put_aside_outdated(self.path / RESULTS, outdated_keys)
        self._open_for_appending()
        self.records = tuple(
            record for record in self.records if (record.case, record.repeat) not in outdated_keys
        )

    def write_failure(self, case: str, repeat: int, error: Exception) -> None:
        """Store the logs and tracebacks of a failure, if any, which are too long for a record."""
        notes = "\n\n".join(getattr(error, "__notes__", ()))
        if notes:
            write_text(self.repeat_dir(case, repeat) / FAILURE_LOG, writable(f"{error}\n\n{notes}\n"))

    def checkpoint(self, case: str, repeat: int) -> Path:
        return self.repeat_dir(case, repeat) / CHECKPOINT

    def append(self, record: Record) -> None:
        """Add one line to `results.jsonl`, with the checksums of the repeat's files; it is on disk on return.

        Raises:
            StoreError: the line could not be written; the lines before it are unchanged.
        """
        folder = self.path / CASES / record.case / str(record.repeat)
        record = replace(record, run=self.run, file_checksums=self._checksums.pop(folder, {}))
        line = to_json(record).encode() + b"\n"
        try:
            _append_whole(self._results, line)
            # Second: whatever ends this process, a line in the index is also in the results.
            _append_whole(self._index, index_line(record.case, record.repeat).encode())
        except OSError as error:
            raise StoreError(
                f"{self.path / RESULTS} must take another line, got {error.strerror}; make room and continue "
                "with --resume",
                field="out",
            ) from error
        if not (self.path / RESULTS).exists():
            # Writes to a deleted file succeed for hours, and are lost.
            raise StoreError(
                f"{self.path / RESULTS} must stay where it is while its run goes on, got it removed; "
                "begin again",
                field="out",
            )
        self._counts[record.case, record.repeat] += 1
        self.records = newest_of_each((*self.records, record))

    def write_plan(self, case: str, repeat: int, plan: object) -> Path:
        return self._remember(write_json(self.repeat_dir(case, repeat) / PLAN, plan))

    def write_steps(self, case: str, repeat: int, steps: Steps) -> Path:
        return self._remember(write_steps(self.repeat_dir(case, repeat) / STEPS, steps))

    def write_trace(self, case: str, repeat: int, document: Mapping[str, JsonValue]) -> Path:
        return self._remember(write_text(self.repeat_dir(case, repeat) / TRACE, json.dumps(document) + "\n"))

    def write_profile(self, case: str, repeat: int, document: Mapping[str, JsonValue]) -> Path:
        return self._remember(write_json(self.repeat_dir(case, repeat) / PROFILE, document))

    def write_report(self, html: str) -> Path:
        return write_text(self.report_path, html)

    def close(self) -> None:
        self._close_results()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_refused = kind is not None and issubclass(kind, UsageError | MissingError)
        if is_refused and self.is_new and not self.records and not any((self.path / CASES).glob("*")):
            shutil.rmtree(self.path, ignore_errors=True)
        self.close()

    def _remember(self, file: Path) -> Path:
        self._checksums.setdefault(file.parent, {})[file.name] = file_checksum(file.read_bytes())
        return file

    def _open_results(self, results: Results) -> None:
        sound = _sound(results)
        self.put_aside, self.records = results.damaged, newest_of_each(sound)
        self._counts = Counter((record.case, record.repeat) for record in sound)
        write_index(self.path / RESULTS, self._counts)
        repair(self.path / RESULTS, results)
        self._open_for_appending()

    def _close_results(self) -> None:
        for descriptor in (self._results, self._index):
            if descriptor >= 0:
                os.close(descriptor)
        self._results = self._index = -1

    def _open_for_appending(self) -> None:
        self._close_results()
        self._index = open_to_write(self.path / INDEX, is_appended=True)
        self._results = open_to_write(self.path / RESULTS, is_appended=True)
        sync_directory(self.path)


def _append_whole(file: int, line: bytes) -> None:
    """Append a line and flush it to disk, completely or not at all."""
    size = os.fstat(file).st_size
    try:
        while line:
            line = line[os.write(file, line) :]
        os.fsync(file)
    except OSError:
        # On a full disk, the next line must not be appended to half a line.
        os.ftruncate(file, size)
        raise


def open_run(
    out: Path | None,
    *,
    experiment: Mapping[str, JsonValue],
    environment: Mapping[str, JsonValue],
    resume: bool = False,
    runs: Path = Path("runs"),
) -> RunFolder:
    """Create a run folder, or reopen an earlier one.

    Args:
        out: run folder; None for `runs/<experiment>-<utc>-<id>`.
        experiment: the resolved experiment, with its `name`; a run with results must have the same.
        environment: facts for `environment.json`.
        resume: True continues the run in `out`; a folder without results starts a new one.
        runs: parent of folders with a generated name.
    Returns:
        The locked folder, for the caller to close.
    Raises:
        UsageError: repeats without `resume`, files of others, another experiment, in use, or not writable.
        StoreError: a document is damaged, results are lost, the folder contains a link, or a later version
            wrote one of the results.
    """
    now = datetime.now(UTC)
    run = default_name(str(experiment["name"]), now)
    path = _plain_path(out if out is not None else runs / run)
    spec_hash = canonical_hash(experiment)
    is_new = not path.exists()
    folder = RunFolder(path, lock=lock_folder(path))
    folder.is_new = is_new
    results = Results()
    try:
        if not _is_empty(path):
            require_plain(path)
            results = _resumable_results(path, spec_hash=spec_hash, resume=resume)
            remove_unfinished(path)
        if (path / RUN_FILE).is_file() and read_head(path)["spec_hash"] == spec_hash:
            folder.run = str(read_head(path)["run"])
        else:
            folder.run = run
            head = {"run": run, "spec_hash": spec_hash, "created_utc": now.isoformat(timespec="seconds")}
            describe(path, head=head, experiment=experiment, environment=environment)
        folder._open_results(results)  # noqa: SLF001 - the other half of this constructor
    except OSError as error:
        folder.close()
        raise unwritable(path, error) from error
    except BaseException:
        folder.close()
        raise
    return folder


def records_in(
    path: Path, *, experiment: Mapping[str, JsonValue], resume: bool = False
) -> tuple[Record, ...]:
    """Records that `open_run` would continue; changes nothing.

    Raises:
        UsageError, StoreError: see `open_run`.
    """
    path = _plain_path(path)
    try:
        if not path.exists():
            return ()
        if (path / LOCK_FILE).exists():
            os.close(lock_folder(path))
        if _is_empty(path):
            return ()
        require_plain(path)
        results = _resumable_results(path, spec_hash=canonical_hash(experiment), resume=resume)
    except OSError as error:
        raise unwritable(path, error) from error
    return newest_of_each(_sound(results))


def _plain_path(path: Path) -> Path:
    return normalised(path) if ".." in path.parts else path


def _sound(results: Results) -> list[Record]:
    return [line.record for line in results.lines if line.record is not None and line.is_sound]


def _is_empty(path: Path) -> bool:
    return all(item.name == LOCK_FILE for item in path.iterdir())


def _resumable_results(path: Path, *, spec_hash: str, resume: bool) -> Results:
    if not resume and not _has_only_begun(path):
        raise UsageError(
            f"{path} is not empty; add --resume to continue it, or name another folder", field="out"
        )
    if not (path / RUN_FILE).is_file():
        if _started_only(path):
            return Results()
        raise UsageError(
            f"{path} is not a run folder (no {RUN_FILE}); name another folder with --out", field="out"
        )
    head, results = read_head(path), read_results(path / RESULTS)
    newer = next((line for line in results.lines if line.is_newer), None)
    if newer is not None:
        raise StoreError(f"{path / RESULTS} line {newer.number}: {newer.why[0]}")
    if results.lost is not None:
        raise StoreError(f"{path / results.lost.where} {results.lost.why}", field="out")
    runs = [line.record.run for line in results.lines if line.record is not None]
    stored = head["spec_hash"]
    if stored == spec_hash:
        read_experiment(path, head)
        read_environment(path, head)
        other = next((run for run in runs if run != head["run"]), None)
        if other is not None:
            raise StoreError(
                f"{path / RESULTS} must hold records of the run {head['run']}, as {RUN_FILE} says, got one "
                f"of {other!r:.80}; put back a copy of either file",
                field="out",
            )
    # A run that was refused before any measurement leaves nothing that could affect another experiment.
    elif runs:
        raise UsageError(
            f"--resume needs the same experiment, got spec {spec_hash[:12]} for a folder of "
            f"{str(stored)[:12]}; use its own {path / EXPERIMENT} or name another folder",
            field="out",
        )
    return results


def _has_only_begun(path: Path) -> bool:
    results = path / RESULTS
    has_results = results.exists() and results.stat().st_size > 0
    return (path / RUN_FILE).is_file() and not has_results and not any(path.glob(f"{CASES}/*/*"))


def _started_only(path: Path) -> bool:
    # Killed while the folder was being described: nothing was measured yet, so nothing can be lost.
    ours = {LOCK_FILE, EXPERIMENT, ENVIRONMENT}
    return all(item.name in ours or is_unfinished(item) for item in path.iterdir())


@dataclass(frozen=True, kw_only=True, slots=True)
class RemovedRuns:
    """Old run folders.

    Attributes:
        folders: folders that were removed, or with `dry_run` would be, oldest first.
        undated: reasons why folders of unknown age stay, one line each.
    """

    folders: tuple[Path, ...] = ()
    undated: tuple[str, ...] = ()


def remove_old_runs(parent: Path, keep: int, *, dry_run: bool = False) -> RemovedRuns:
    """Remove run folders directly below a folder, except the newest and those of runs in progress.

    Folders with a name given by a person are not counted, and stay.

    Args:
        keep: number of newest folders to keep.
        dry_run: True only lists them.
    """
    dated: list[tuple[str, Path]] = []
    undated: list[str] = []
    for folder in sorted(parent.glob("*")):
        # A link to a run is not another run.
        if is_default_name(folder.name) and not folder.is_symlink() and _holds_run(folder):
            try:
                dated.append((str(read_head(folder)["created_utc"]), folder))
            except StoreError as error:
                undated.append(f"{error}; the folder stays")
    dated.sort()
    old = [folder for _, folder in (dated[:-keep] if keep else dated)]
    removed = tuple(folder for folder in old if _remove(folder, dry_run=dry_run))
    return RemovedRuns(folders=removed, undated=tuple(undated))


def _holds_run(folder: Path) -> bool:
    return any(os.path.lexists(folder / name) for name in (RUN_FILE, RESULTS))


def _remove(folder: Path, *, dry_run: bool) -> bool:
    if dry_run and not os.path.lexists(folder / LOCK_FILE):
        return os.access(folder, os.W_OK | os.X_OK)  # locking it would write the lock into it
    try:
        lock = lock_folder(folder)
    except (UsageError, StoreError):
        return False  # its run is in progress, it belongs to another user, or its lock is a link
    try:
        if dry_run:
            return True
        # The files that mark a run folder are removed last, so that a partial removal is detected.
        for item in folder.iterdir():
            if item.name in (RUN_FILE, LOCK_FILE):
                continue
            if item.is_dir() and not item.is_symlink():
                shutil.rmtree(item, ignore_errors=True)
            else:
                item.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
    return not folder.exists()
