"""A run of an experiment beside a test: `stratbench run` in a process of its own.

There it can move to a network of its own, as pytest's process with its threads cannot, and neither Ray nor
TensorFlow gets into the tests' process.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from harness.atomic_files import write_text
from harness.contained_files import open_to_write
from harness.errors import CaseError, first_line
from harness.module_command import module_command

if TYPE_CHECKING:
    from harness.experiment.model import Experiment
    from harness.records.store import StoredRun

_CLEANING_S = 60.0


def run_experiment(spec: Experiment, folder: Path) -> StoredRun:
    """Run an experiment; whatever ends this early ends that.

    Args:
        folder: for the run folder, the experiment and what the run says meanwhile.
    Raises:
        CaseError: it could not be run.
    """
    from harness.records.run_layout import RUN_FILE
    from harness.records.store import load_run

    experiment, run_dir, log = folder / "experiment.yaml", folder / "run", folder / "run.log"
    # What is JSON is YAML too.
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
    """End a process that has not ended, and wait while it removes what it started."""
    if process.poll() is None:
        process.terminate()
        try:
            process.communicate(timeout=_CLEANING_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def _refusal(output: bytes) -> str | None:
    """Why nothing was run, as a document of `--json` says it."""
    try:
        document = json.loads(output)
    except ValueError:
        return None
    error = document.get("error") if isinstance(document, dict) else None
    if not isinstance(error, dict):
        return None
    message = first_line(str(error.get("message")))
    return f"{error['field']}: {message}" if error.get("field") else message
