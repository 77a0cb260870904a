"""Arguments and options that `predict` and `recommend` share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from harness.errors import UsageError
from harness.written_values import HIGHEST_MBIT, kebab, parse_rate_mbit

UNLIMITED = "unlimited"
ProbeFile = Annotated[
    Path | None,
    typer.Option(
        "--probe",
        metavar="FILE",
        help="Costs of exchanges [default: this machine's; measured for an experiment if missing].",
    ),
]
_MOST_WORKERS = 65_536
_LOWEST_MBIT = 1.0


def run_folder(source: str) -> tuple[Path | None, list[str]]:
    """The run folder that an argument names, None for an experiment; and a note if it could mean both.

    Raises:
        StoreError: it is a folder without a run, and no experiment.
    """
    from harness.experiment.load import shipped
    from harness.records.run_documents import RUN_FILE

    path = Path(source)
    if not path.is_dir():
        return None, []
    is_experiment = kebab(source) in {item.stem for item in shipped()}
    if (path / RUN_FILE).is_file():
        return path, [f"{source} is the run folder, not the experiment of this name"] if is_experiment else []
    if is_experiment:
        return None, [f"{source} is the experiment; the folder of this name has no run"]
    from harness.records.stored_run import require_run

    require_run(path)
    return path, []


def experiment_of(run_dir: Path) -> Mapping[str, object]:
    """Document of a run's experiment."""
    from harness.records.run_documents import read_experiment, read_head

    return read_experiment(run_dir, read_head(run_dir))


def n_workers(text: str) -> int:
    """Read a number of workers.

    Raises:
        UsageError: it is none.
    """
    if not text.strip().isdecimal() or not text.isascii() or not 1 <= int(text) <= _MOST_WORKERS:
        raise UsageError(
            f"needs numbers from 1 to {_MOST_WORKERS:,} with commas, such as 8,64, got {text[:40]!r}",
            field="workers",
        )
    return int(text)


def rate_mbit(text: str) -> float | None:
    """Read the rate of a link; None for one without a limit.

    Raises:
        UsageError: it is none.
    """
    if text.strip().lower() == UNLIMITED:
        return None
    rate = parse_rate_mbit(text)
    if rate is None or not _LOWEST_MBIT <= rate <= HIGHEST_MBIT:
        raise UsageError(
            f"needs rates with a unit from 1mbit to 1000000gbit, or {UNLIMITED}, got {text[:40]!r}",
            field="link",
        )
    return rate
