"""`stratbench report`: a report from stored records."""

from __future__ import annotations

import webbrowser
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from harness.cli import output
from harness.cli.output import Answer, answer_in_lines
from harness.cli.output_files import is_stdout, naming, output_file
from harness.errors import EXIT_CASE, EXIT_OK, UsageError
from harness.records.run_documents import PREDICTIONS, REPORT, RUN_FILE

EXAMPLE = "stratbench report runs/quickstart-20260101t120000z-0badcafe --format html --open"


class Format(StrEnum):
    """Format of a report."""

    HTML = "html"
    MD = "md"
    CSV = "csv"
    JSON = "json"
    JUNIT = "junit"


def report(
    run_dirs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN_DIR...", help="Run folders; several make one report.", show_default=False
        ),
    ],
    *,
    format: Annotated[Format, typer.Option("--format", help="Format of the report.")] = Format.HTML,  # noqa: A002 - the option's name
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Write to this file [default: in the run folder if html, else stdout].",
        ),
    ] = None,
    open: Annotated[bool, typer.Option("--open", help="Open the HTML in a browser.")] = False,  # noqa: A002 - the option's name
    notes: Annotated[
        bool, typer.Option("--notes", help="Print the results as after a run, with all notes.")
    ] = False,
    push_gateway: Annotated[
        str | None,
        typer.Option(
            "--push-gateway",
            metavar="URL",
            help="Also push each strategy's newest repeat to a Prometheus Pushgateway.",
        ),
    ] = None,
) -> Answer:
    """Write the report of one run, or of several together.

    \f
    Exit status 1 if files are damaged or missing; the report is written anyway.
    """
    if notes and out is not None:
        raise UsageError("must be used without --out; redirect what it prints", field="notes")
    path = None if notes else _destination(run_dirs, format, out)
    for option, is_given in (("notes", notes), ("open", open)):
        if is_given and format is not Format.HTML:
            raise UsageError(f"must be used with --format html, got {format.value}", field=option)
    _predict_missing(run_dirs)
    text, is_damaged = _rendered(run_dirs, format, path, with_notes=notes)
    status = EXIT_CASE if is_damaged else EXIT_OK
    if push_gateway is not None:
        _push(run_dirs, push_gateway)
    if path is None:
        return Answer(
            document={"format": "text" if notes else format.value, "text": text},
            show=partial(output.print_text, text),
            exit_status=status,
        )
    _write(path, text, is_named=out is not None)
    if open:
        webbrowser.open(path.resolve().as_uri())
    document = {"format": format.value, "report": str(path)}
    return answer_in_lines([f"report: {path}"], document, status)


def _predict_missing(run_dirs: list[Path]) -> None:
    """Predict the cases of runs without predictions."""
    missing = [
        run_dir
        for run_dir in run_dirs
        if (run_dir / RUN_FILE).is_file() and not (run_dir / PREDICTIONS).exists()
    ]
    if missing:
        from harness.run_predictions import predict_ended

        for run_dir in missing:
            if unpredicted := predict_ended(run_dir):
                output.warn(f"{run_dir}: not predicted: {unpredicted}")


def _rendered(
    run_dirs: list[Path],
    format: Format,  # noqa: A002 - the option's name
    path: Path | None,
    *,
    with_notes: bool,
) -> tuple[str, bool]:
    """The report, and True if files of the runs are damaged; prints the damage."""
    import reports

    damage: list[str] = []
    try:
        if with_notes:
            text = reports.text_with_notes(run_dirs, notify=output.warn, notify_damage=damage.append)
        else:
            text = reports.render(
                run_dirs, format.value, notify=output.warn, notify_damage=damage.append, destination=path
            )
    except reports.ReportError as error:
        field, _, message = str(error).partition(": ")
        raise UsageError(message, field=field) from None
    for line in damage:
        output.warn(line)
    return text, bool(damage)


def _write(path: Path, text: str, *, is_named: bool) -> None:
    from harness.atomic_files import write_output, write_text

    with naming(path, field="out"):
        if is_named:
            write_output(path, text.encode())
        else:
            write_text(path, text)  # in a run folder, which may be anybody's: no link is followed


def _push(run_dirs: list[Path], url: str) -> None:
    from harness.measure.prometheus import push_newest
    from reports.load import load
    from reports.rows.row import repeat_gauges

    n_pushed = sum(push_newest(load(path).records, url, repeat_gauges()) for path in run_dirs)
    output.warn(f"pushed to {url}: {n_pushed} strategies")


def _destination(run_dirs: list[Path], format: Format, out: Path | None) -> Path | None:  # noqa: A002 - as above
    if out is not None:
        return None if is_stdout(out) else output_file(out, field="out")
    if format is not Format.HTML:
        return None
    if len(run_dirs) > 1:
        raise UsageError("must name a file for the HTML report of several runs, got nothing", field="out")
    from harness.records.stored_run import require_run

    require_run(run_dirs[0])
    return run_dirs[0] / REPORT
