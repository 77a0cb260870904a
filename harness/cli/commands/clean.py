"""`stratbench clean`: removal of dead runs' leftovers and, on request, of old results."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import output
from harness.cli.output import Answer
from harness.errors import EXIT_OK, HarnessError

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

    These are temporary folders, processes, containers, networks and git worktrees.
    """
    from harness.provision.registry import clean as remove_leftovers
    from harness.records.run_folder import RemovedRuns, remove_old_runs

    cleaned = remove_leftovers(dry_run=dry_run)
    worktrees = _dead_worktrees(dry_run=dry_run)
    removed = RemovedRuns() if keep is None else remove_old_runs(_RUNS, keep, dry_run=dry_run)
    runs = tuple(map(str, removed.folders))
    return Answer(
        document={
            "folders": list(cleaned.folders),
            "containers": cleaned.containers,
            "worktrees": list(worktrees),
            "runs": list(runs),
            "undated": list(removed.undated),
            "dry_run": dry_run,
        },
        show=partial(_show, cleaned, worktrees, runs, removed.undated, dry_run=dry_run),
        exit_status=EXIT_OK,
    )


def _dead_worktrees(*, dry_run: bool) -> tuple[str, ...]:
    """Worktree entries that killed bisections left in the repository of the working directory."""
    from harness.cli.nightly.checkout import Checkout
    from harness.host_facts import checkout_of

    root = checkout_of(Path("here"))
    if root is None:
        return ()
    with contextlib.suppress(HarnessError):
        return tuple(map(str, Checkout(root=root, environ=os.environ).remove_dead_worktrees(dry_run=dry_run)))
    return ()


def _show(
    cleaned: Cleaned,
    worktrees: Sequence[str],
    runs: Sequence[str],
    undated: Sequence[str],
    *,
    dry_run: bool,
) -> None:
    done = "would remove" if dry_run else "removed"
    for kind, names in (
        ("temporary folder", cleaned.folders),
        ("container or network", cleaned.containers or ()),
        ("git worktree", worktrees),
        ("run folder", runs),
    ):
        for name in names:
            output.print_line(f"{done} the {kind} {name}")
    for line in undated:
        output.print_line(line)
    if not (cleaned.folders or cleaned.containers or worktrees or runs):
        output.print_line("nothing to remove")
    if cleaned.containers is None:
        output.print_line("Docker is not running: containers were not checked; start it and try again")
