"""`stratbench compare`: what has changed between two runs."""

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
    from reports.pages.terminal import TerminalTable

EXAMPLE = "stratbench compare runs/before runs/after --threshold 3%"


class Format(StrEnum):
    """Format of the changes."""

    TEXT = "text"
    MD = "md"


def compare(
    run_a: Annotated[Path, typer.Argument(metavar="RUN_A", help="Run folder of before.", show_default=False)],
    run_b: Annotated[Path, typer.Argument(metavar="RUN_B", help="Run folder of now.", show_default=False)],
    *,
    threshold: Annotated[
        str,
        typer.Option(
            "--threshold", metavar="SHARE", help="Change up to which a case counts as the same, as in 3%."
        ),
    ] = "3%",
    rates: Annotated[
        bool,
        typer.Option("--rates", help="Judge by rates alone, on machines that nobody else uses."),
    ] = False,
    anyway: Annotated[
        bool,
        typer.Option(
            "--anyway", help="Judge cases whose machine or method differ, too; the difference is named."
        ),
    ] = False,
    format: Annotated[Format, typer.Option("--format", help="What to print.")] = Format.TEXT,  # noqa: A002 - the option's name
) -> Answer:
    """Say what has changed between two runs, case by case; status 4 where something is slower, sends
    more, or is broken.

    \f
    Status 1 where nothing can be compared, or something of a run folder is damaged or gone.
    """
    within = share(threshold, field="threshold")
    from reports.changes import wording
    from reports.changes.changes import changes_between
    from reports.load import load

    before, after = load(run_a), load(run_b)
    left_out = [(run.name, item) for run in (before, after) for item in run.left_out]
    for name, item in left_out:
        output.warn(f"left out: {name}: {item.where}: {item.why}")
    changes = changes_between(before, after, threshold=within, by_rates=rates or None, anyway=anyway)
    if format is Format.MD:
        show = partial(output.say_text, wording.to_markdown(changes))
    else:
        show = partial(_show, wording.to_terminal(changes))
    return Answer(
        document=wording.to_document(changes),
        show=show,
        exit_status=_status(changes, is_damaged=any(item.is_damage for _, item in left_out)),
    )


def _status(changes: Changes, *, is_damaged: bool) -> int:
    if changes.regressed:
        return EXIT_REGRESSION
    return EXIT_CASE if changes.is_empty or is_damaged else EXIT_OK


def _show(table: TerminalTable) -> None:
    for line in table.verdict:
        output.say(line)
    output.say(table.title)
    output.table(table.columns, table.rows)
    if table.notes:
        output.say("What differs around them:")
    for note in table.notes:
        output.say(f"  {note}")
