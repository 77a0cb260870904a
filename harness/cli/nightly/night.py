"""One night: an experiment is run, written to the history, and judged."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from harness import pipeline
from harness.cli import output
from harness.contained_files import open_to_write
from harness.errors import Interrupted, MissingError, StoreError
from harness.experiment.model import Experiment
from harness.preflight import check_experiment
from harness.records.retention import remove_old_runs
from harness.records.run_layout import default_name
from harness.requests import RunOptions, RunOutcome
from reports.history.night import added
from reports.history.store import RUNS, writing
from reports.history.verdicts import NightVerdict, verdict_of

STAMP = "last-night"
"""File of a store that a night touches once it is in the history, and nothing else does."""
_LEAST_FREE_BYTES = 1 << 30


def judged_night(
    store: Path, spec: Experiment, options: RunOptions, *, confirm: int, keep: int
) -> tuple[NightVerdict, RunOutcome]:
    """Run, write, judge, and remove what is too old.

    Args:
        options: of the run, but for its folder, which is one of the store.
        confirm: nights that a change must last. keep: run folders that stay.
    """
    check_experiment(spec)
    with writing(store, clock=partial(datetime.now, UTC)) as history:
        _require_space(store)
        folder = store / RUNS / default_name(spec.name, datetime.now(UTC))
        try:
            outcome = pipeline.run(spec, replace(options, out=folder))
        except Interrupted:
            raise Interrupted(f"interrupted; {_way_out(folder)}, or begin anew") from None
        except StoreError as error:
            raise StoreError(f"{error.message}; {_way_out(folder)}", field="store") from None
        night = added(history, folder, tell=output.warn)
        _stamp(store / STAMP)
        verdict = verdict_of(history, night, confirm=confirm)
        remove_old_runs(store / RUNS, keep)
    return verdict, outcome


def _stamp(path: Path) -> None:
    try:
        with os.fdopen(open_to_write(path), "rb") as stamp:
            os.utime(stamp.fileno())
    except (OSError, StoreError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        output.warn(f"{path} must be a file that can be written, got {why}; Compose looks at its age")


def _way_out(folder: Path) -> str:
    again = f"`stratbench run EXPERIMENT --out {folder} --resume`, then `nightly --import {folder}`"
    return f"the night is not in the history: {again}"


def _require_space(store: Path) -> None:
    free_bytes = shutil.disk_usage(store).free
    if free_bytes < _LEAST_FREE_BYTES:
        free = f"{free_bytes >> 20} MiB free in {store}"
        raise MissingError(
            f"a night needs {_LEAST_FREE_BYTES >> 20} MiB of disk, got {free}; make room, or lower --keep",
            field="store",
        )
