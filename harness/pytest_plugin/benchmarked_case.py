"""A case that `stratbench run` ran for a test, in a separate process, and figures of its repeats.

That process can move to its own network, unlike pytest's with its threads, and keeps Ray and TensorFlow out
of the tests' process.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING

from harness.atomic_files import write_text
from harness.errors import CaseError, first_line
from harness.processes import module_command
from harness.records.contained_files import open_to_write

if TYPE_CHECKING:
    from harness.experiment.cases import Case
    from harness.experiment.model import Experiment
    from harness.records.record import Record
    from harness.records.stored_run import StoredRun


_CLEANING_S = 60.0


def run_experiment(spec: Experiment, folder: Path) -> StoredRun:
    """Run an experiment; an exception during the wait ends it.

    Args:
        folder: parent of the run folder, the experiment file and the log.
    Raises:
        CaseError: the experiment could not be run.
    """
    from harness.records.run_documents import RUN_FILE
    from harness.records.stored_run import load_run

    experiment, run_dir, log = folder / "experiment.yaml", folder / "run", folder / "run.log"
    # JSON is valid YAML, too.
    write_text(experiment, json.dumps(spec.to_document()))
    with os.fdopen(open_to_write(log, is_replaced=True), "wb") as log_file:
        process = subprocess.Popen(
            module_command("harness.cli", "run", str(experiment), "--out", str(run_dir), "--json"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log_file,
        )
        try:
            output, _ = process.communicate()
        finally:
            _end(process)
    refusal = _refusal(output)
    if refusal is None and not (run_dir / RUN_FILE).is_file():
        refusal = f"`stratbench run` must leave a run, got status {process.returncode}; its log is {log}"
    if refusal is not None:
        raise CaseError("no-result", refusal, stage="run")
    return load_run(run_dir)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.communicate(timeout=_CLEANING_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def _refusal(output: bytes) -> str | None:
    """Reason why nothing was run, from a document of `--json`; None if it has none."""
    try:
        document = json.loads(output)
    except ValueError:
        return None
    error = document.get("error") if isinstance(document, dict) else None
    if not isinstance(error, dict):
        return None
    message = first_line(str(error.get("message")))
    return f"{error['field']}: {message}" if error.get("field") else message


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkedCase:
    """A case with a result; figures combine its repeats.

    Attributes:
        run_dir: the run folder, for `stratbench report`.
        records: one for each repeat, at least one.
    """

    case: Case
    run_dir: Path
    records: tuple[Record, ...]

    @property
    def step_s(self) -> tuple[float, ...]:
        """Median step of each window of each repeat, in seconds."""
        return tuple(seconds for record in self.records for seconds in _windows(record))

    @property
    def examples_per_s(self) -> float | None:
        """Examples per second of the median step."""
        return _of(median, [record.median_examples_per_s for record in self.records])

    @property
    def payload_bytes_per_step(self) -> float | None:
        """Predicted bytes sent by all workers in a step."""
        return _of(fmean, [record.payload_bytes_per_step for record in self.records])

    @property
    def tcp_bytes_per_step(self) -> float | None:
        """Bytes sent by all workers' connections in a step."""
        return _of(fmean, [record.tcp_bytes_per_step for record in self.records])

    @property
    def peak_rss_bytes(self) -> float | None:
        """Memory of the largest worker, in bytes."""
        return _of(fmean, [_of(max, record.peak_rss_bytes or ()) for record in self.records])

    @property
    def equivalence(self) -> str:
        """Verdict as in a report, such as `equivalent` or `within-bound`."""
        from reports.marks import mark_of

        return mark_of(self.records).kind

    def extra_info(self) -> dict[str, object]:
        """Facts of a benchmark besides its seconds, with the names of records if they have the same fact."""
        first = self.records[0]
        return {
            "experiment": first.experiment,
            "case": first.case,
            "workload": str(self.case.workload),
            "strategy": str(self.case.strategy),
            "class": first.strategy_class,
            "provider": first.provider,
            "device": first.device,
            "workers": first.workers,
            "replicas": first.replicas,
            "batch_size": first.batch_size,
            "repeats": len(self.records),
            "equivalence": self.equivalence,
            "examples_per_s": self.examples_per_s,
            "payload_bytes_per_step": self.payload_bytes_per_step,
            "tcp_bytes_per_step": self.tcp_bytes_per_step,
            "peak_rss_bytes": self.peak_rss_bytes,
            "comparison_key": first.comparison_key,
            "lock_hash": first.provenance.lock_hash if first.provenance else None,
        }


def problem_of(records: Sequence[Record]) -> str | None:
    """Reason why a case's repeats are no result, in one line; None if they are."""
    if not records:
        return "left no record of a repeat"
    return next((problem for record in records if (problem := _problem(record))), None)


def _problem(record: Record) -> str | None:
    if record.status != "ok":
        error = record.error
        why = f"{error.type}: {error.message}" if error else record.plausibility or "no reason is given"
        return f"{record.status}: {why}"
    check = record.equivalence
    if check is not None and check.wrong and not record.control:
        return f"is not equivalent to one device: {check.reason or 'no reason is given'}"
    return None if _windows(record) else "has no step times"


def _windows(record: Record) -> tuple[float, ...]:
    if record.rounds is not None:
        return record.rounds.step_s
    return () if record.median_step_s is None else (record.median_step_s,)


def _of(mean: Callable[[Sequence[float]], float], values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return mean(present) if present else None
