"""`stratbench clean`: what dead runs have left, and old results if asked."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import output
from harness.cli.output import Answer
from harness.errors import EXIT_OK

if TYPE_CHECKING:
    from harness.provision.registry import Cleaned

EXAMPLE = "stratbench clean --keep 20"
_RUNS = Path("runs")


def clean(
    *,
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep",
            metavar="N",
            min=0,
            help="Also remove run folders in runs/ with default names, except the newest N.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the leftovers without removing them.")
    ] = False,
) -> Answer:
    """Remove leftovers of interrupted runs.

    These are temporary folders, processes, containers and networks.
    """
    from harness.provision.registry import clean as remove_leftovers
    from harness.records.run_folder import RemovedRuns, remove_old_runs

    cleaned = remove_leftovers(dry_run=dry_run)
    removed = RemovedRuns() if keep is None else remove_old_runs(_RUNS, keep, dry_run=dry_run)
    runs = tuple(map(str, removed.folders))
    return Answer(
        document={
            "folders": list(cleaned.folders),
            "containers": cleaned.containers,
            "runs": list(runs),
            "undated": list(removed.undated),
            "dry_run": dry_run,
        },
        show=partial(_show, cleaned, runs, removed.undated, dry_run=dry_run),
        exit_status=EXIT_OK,
    )


def _show(cleaned: Cleaned, runs: Sequence[str], undated: Sequence[str], *, dry_run: bool) -> None:
    done = "would remove" if dry_run else "removed"
    for what, names in (
        ("temporary folder", cleaned.folders),
        ("container or network", cleaned.containers or ()),
        ("run folder", runs),
    ):
        for name in names:
            output.say(f"{done} the {what} {name}")
    for line in undated:
        output.say(line)
    if not (cleaned.folders or cleaned.containers or runs):
        output.say("nothing to remove")
    if cleaned.containers is None:
        output.say("no Docker engine answers here: containers were not looked for")
