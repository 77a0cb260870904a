"""Reports made from stored run folders: HTML, Markdown, CSV, JSON and tables for a terminal.

What needs numpy, scipy or jinja2 is imported by the calls, so that importing the package costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reports.pages.terminal import TerminalTable

__all__ = ["FORMATS", "ReportError", "render", "summarize"]

FORMATS = ("html", "md", "csv", "json")


class ReportError(Exception):
    """A request from which no report can be made."""


def render(
    run_dirs: Sequence[Path],
    format: str = "html",  # noqa: A002 - the option's name on the command line
    *,
    tell: Callable[[str], None] | None = None,
) -> str:
    """Make a report of one or more run folders.

    Args:
        run_dirs: run folders; strategies are compared within each.
        format: one of `FORMATS`; names and messages go through its escaping.
        tell: hears what was left out where the format has no place to say it.
    Raises:
        ReportError: for a format that does not exist, or no folder.
        harness.errors.StoreError: when a folder is no run folder.
    """
    if format not in FORMATS:
        raise ReportError(
            f"format: must be one of {', '.join(FORMATS)}, got {format!r}; html is the full report"
        )
    if not run_dirs:
        raise ReportError(
            "run_dirs: needs at least one run folder, got none; name a folder made by `stratbench run`"
        )
    from reports.compare import build
    from reports.load import load, read_steps
    from reports.pages import exports, page

    runs = [load(Path(path), with_files=format == "html") for path in run_dirs]
    report = build(runs, read_steps=read_steps if format == "html" else None)
    write = {"html": page.to_html, "md": exports.to_markdown, "csv": exports.to_csv, "json": exports.to_json}
    text = write[format](report)
    if tell is not None and format == "csv":
        for item in report.left_out:
            tell(f"left out: {item.where}: {item.why}")
    # JSON can name half of a surrogate pair, which no file can hold.
    return text.encode("utf-8", errors="replace").decode()


def summarize(run_dirs: Sequence[Path]) -> tuple[TerminalTable, ...]:
    """Make the comparison tables of one or more run folders, for a terminal.

    Raises:
        harness.errors.StoreError: when a folder is no run folder.
    """
    from reports.compare import build
    from reports.load import load
    from reports.pages.terminal import terminal_tables

    return terminal_tables(build([load(Path(path)) for path in run_dirs]))
