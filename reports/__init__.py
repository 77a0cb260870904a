"""Reports made from stored run folders: HTML, Markdown, CSV, JSON, JUnit XML, terminal tables.

Functions import numpy, scipy and jinja2 themselves, so that importing the package is fast.
"""

from __future__ import annotations

import gc
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.records.predictions import PredictedTimeline, StoredPrediction
    from reports.rows.report import Report

__all__ = [
    "FORMATS",
    "ReportError",
    "RunReport",
    "prediction_page",
    "render",
    "report_of",
    "text_with_notes",
]

_MOST_BASELINES = 24
FORMATS = ("html", "md", "csv", "json", "junit")
_MOST_MESSAGES = 5


class ReportError(Exception):
    """A request from which no report can be made."""


def render(
    run_dirs: Sequence[Path],
    format: str = "html",  # noqa: A002 - the option's name on the command line
    *,
    notify: Callable[[str], None] | None = None,
    notify_damage: Callable[[str], None] | None = None,
    destination: Path | None = None,
) -> str:
    """Make a report of one or more run folders.

    Args:
        run_dirs: run folders; strategies are compared within each.
        format: one of `FORMATS`; names and messages go through its escaping.
        destination: file to which the report will be written; a page in its run folder links to the other
            files there.
        notify: receives messages on left-out parts (the first ones, or all if the format cannot list
            them), and hints on further commands.
        notify_damage: receives messages on damaged or missing files instead.
    Raises:
        ReportError: the format does not exist, no folder is given, or a folder is given twice.
        harness.errors.StoreError: a folder is not a run folder.
    """
    if format not in FORMATS:
        raise ReportError(
            f"format: must be one of {', '.join(FORMATS)}, got {format!r}; html is the full report"
        )
    report = _report(run_dirs, with_files=format in ("html", "json"), with_steps=format == "html")
    if notify is not None:
        most = None if format in ("csv", "junit") else _MOST_MESSAGES  # these cannot list the others
        _notify(report, notify, notify_damage or notify, most=most)
    in_run_folder = (
        destination is not None
        and len(run_dirs) == 1
        and destination.parent.resolve() == Path(run_dirs[0]).resolve()
    )
    return _text(report, format, in_run_folder=in_run_folder)


def _notify(
    report: Report, notify: Callable[[str], None], notify_damage: Callable[[str], None], *, most: int | None
) -> None:
    # Damage comes first, so that it is among the messages shown.
    left_out = sorted(report.left_out, key=lambda item: not item.is_damage)
    for item in left_out[:most]:
        (notify_damage if item.is_damage else notify)(f"left out: {item.where}: {item.why}")
    if most is not None and (more := len(left_out[most:])):
        notify(f"left out: {more} more, listed in the report")
    for hint in report.hints:
        notify(hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """Report of one run: its page, and its results for a terminal."""

    html: str
    text: str


def report_of(run_dir: Path) -> RunReport:
    """Make the page and the text of one run folder from the same rows.

    Raises:
        harness.errors.StoreError: it is not a run folder.
    """
    from reports.pages.terminal import to_text

    report = _report([run_dir], with_files=True, with_steps=True)
    html = _text(report, "html", in_run_folder=True)
    return RunReport(html=html, text=to_text(report, folder=shlex.quote(str(run_dir))))


def text_with_notes(
    run_dirs: Sequence[Path], *, notify: Callable[[str], None], notify_damage: Callable[[str], None]
) -> str:
    """Make the results of run folders for a terminal, with all notes.

    Raises:
        ReportError, harness.errors.StoreError: see `render`.
    """
    from reports.pages.terminal import to_text

    report = _report(run_dirs, with_files=False, with_steps=False)
    _notify(report, notify, notify_damage, most=None)
    return to_text(report, folder="", with_notes=True)


def prediction_page(
    predictions: Sequence[StoredPrediction],
    *,
    run_dir: Path,
    timelines: Sequence[PredictedTimeline],
    texts: Sequence[str],
) -> str:
    """Make a page of predictions, with the measured cases and traced steps of the run behind them.

    Args:
        timelines: simulated steps. texts: sentences above the charts.
    Raises:
        harness.errors.StoreError: `run_dir` is not a run folder.
    """
    from reports.compare import build
    from reports.load import load
    from reports.pages import prediction_page as page

    run = load(run_dir)
    measured = build([run]).comparisons
    return page.prediction_page(predictions, timelines=timelines, texts=texts, run=run, measured=measured)


@contextmanager
def _no_search_for_cycles() -> Iterator[None]:
    # A report's values have no cycles; with thousands of records the search takes an eighth of the time.
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@_no_search_for_cycles()
def _report(run_dirs: Sequence[Path], *, with_files: bool, with_steps: bool) -> Report:
    from reports.compare import build
    from reports.load import load, read_steps

    if not run_dirs:
        raise ReportError(
            "run_dirs: needs at least one run folder, got none; name a folder made by `stratbench run`"
        )
    if twice := next((path for i, path in enumerate(run_dirs) if path in run_dirs[:i]), None):
        raise ReportError(f"run_dirs: must differ from each other, got {twice} twice; name each run once")
    runs = [load(Path(path), with_files=True) for path in run_dirs]
    return build(
        runs,
        read_steps=read_steps if with_steps else None,
        with_files=with_files,
        n_baselines=_MOST_BASELINES if with_steps else 0,
    )


@_no_search_for_cycles()
def _text(report: Report, format: str, *, in_run_folder: bool) -> str:  # noqa: A002 - as for `render`
    from reports.pages import data, junit, markdown, page

    write: Mapping[str, Callable[[Report], str]] = {
        "html": partial(page.to_html, in_run_folder=in_run_folder),
        "md": markdown.to_markdown,
        "csv": data.to_csv,
        "json": data.to_json,
        "junit": junit.to_junit,
    }
    # JSON can name half of a surrogate pair, which no file can hold.
    return write[format](report).encode("utf-8", errors="replace").decode()
