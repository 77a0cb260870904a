"""`stratbench compare`: changes between two runs."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import output
from harness.cli.options import share
from harness.cli.output import Answer
from harness.errors import EXIT_CASE, EXIT_OK, EXIT_REGRESSION

if TYPE_CHECKING:
    from reports.changes.changes import Changes

EXAMPLE = "stratbench compare runs/before runs/after --threshold 3%"


class Format(StrEnum):
    """Format of the changes."""

    TEXT = "text"
    MD = "md"


def compare(
    run_a: Annotated[
        Path, typer.Argument(metavar="RUN_A", help="Run folder before the change.", show_default=False)
    ],
    run_b: Annotated[
        Path, typer.Argument(metavar="RUN_B", help="Run folder after the change.", show_default=False)
    ],
    *,
    threshold: Annotated[
        str,
        typer.Option("--threshold", metavar="3%", help="Largest change that counts as the same."),
    ] = "3%",
    rates: Annotated[
        bool,
        typer.Option("--rates", help="Compare examples/s, not ratios; for idle machines."),
    ] = False,
    anyway: Annotated[
        bool,
        typer.Option("--anyway", help="Also compare cases whose machine or method differs."),
    ] = False,
    format: Annotated[Format, typer.Option("--format", help="Format of the output.")] = Format.TEXT,  # noqa: A002 - the option's name
) -> Answer:
    """Compare two runs case by case.

    Exit status 4 if a case is slower, sends more or is broken.

    \f
    Exit status 1 if nothing can be compared, or files are damaged or missing.
    """
    within = share(threshold, field="threshold")
    from reports.changes import formats
    from reports.changes.changes import changes_between
    from reports.load import load

    before, after = load(run_a), load(run_b)
    left_out = [(run.name, item) for run in (before, after) for item in run.left_out]
    for name, item in left_out:
        output.warn(f"left out: {name}: {item.where}: {item.why}")
    changes = changes_between(before, after, threshold=within, by_rates=rates or None, anyway=anyway)
    text = formats.to_markdown(changes) if format is Format.MD else formats.to_text(changes)
    return Answer(
        document=formats.to_document(changes),
        show=partial(output.print_text, text),
        exit_status=_status(changes, is_damaged=any(item.is_damage for _, item in left_out)),
    )


def _status(changes: Changes, *, is_damaged: bool) -> int:
    if changes.regressed:
        return EXIT_REGRESSION
    return EXIT_CASE if changes.is_empty or is_damaged else EXIT_OK
