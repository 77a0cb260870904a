"""Output of commands: tables, one JSON document, one line for an error."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TextIO

from harness.canonical import json_value
from harness.errors import EXIT_OK
from harness.records.safe_text import plain


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """Answer of a command.

    Args:
        document: output with --json; mappings, sequences and scalars.
        show: prints the same as text.
    """

    document: object
    show: Callable[[], None]
    exit_status: int = EXIT_OK


Row = Sequence[str]
_GAP = 2


def answer_in_lines(lines: Sequence[str], document: object, exit_status: int = EXIT_OK) -> Answer:
    """Answer with lines of text, and the same as a document."""
    return Answer(document=document, show=lambda: print_lines(lines), exit_status=exit_status)


def emit_json(document: object, *, stream: TextIO | None = None) -> None:
    """Print one JSON document; numbers that are not finite become null."""
    target = stream or sys.stdout
    is_unicode = (target.encoding or "utf-8").lower() in ("utf-8", "utf8")
    print(json.dumps(json_value(document), indent=2, ensure_ascii=not is_unicode), file=target)


def print_lines(lines: Iterable[str]) -> None:
    """Print lines."""
    for line in lines:
        print_line(line)


def print_line(line: str = "") -> None:
    """Print one line; continuation lines have the same indentation.

    On a terminal, it is broken between words, so that paths stay whole.
    """
    text = plain(line)
    if text:
        indent = " " * (len(line) - len(line.lstrip(" ")))
        text = _wrapped(text, indent) if sys.stdout.isatty() else indent + text
    print(text)  # noqa: T201 - the answer that a person asked for


def print_text(text: str) -> None:
    """Print our own text unchanged, with a newline at its end."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def warn(line: str) -> None:
    """Print one line about the command itself, apart from its result."""
    # If nobody reads it or the disk of its log is full, the command's exit status is enough.
    with contextlib.suppress(OSError):
        print(plain(line), file=sys.stderr)  # noqa: T201 - what a command says at its end


def table(headers: Row, rows: Sequence[Row], *, below: Sequence[str] = ()) -> None:
    """Print a table; on a terminal, wide cells wrap except in the first column.

    Args:
        below: indented line below each row.
    """
    safe = [[plain(cell) for cell in row] for row in rows]
    if sys.stdout.isatty() and not below:
        _rich_table(headers, safe)
        return
    widths = [max(map(len, column)) for column in zip(headers, *safe, strict=True)]
    for row, line in zip_longest((headers, *safe), ("", *below)):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print_text("  ".join(cells).rstrip())
        if line:
            print_line(f"  {line}")


def _rich_table(headers: Row, rows: Sequence[Row]) -> None:
    # Importing rich takes 50 ms, which a pipe does not need.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for index, header in enumerate(headers):
        grid.add_column(header, overflow="fold", no_wrap=index == 0)
    for row in rows:
        # Text, not str: brackets in a name would be read as markup.
        grid.add_row(*(Text(cell) for cell in row))
    Console().print(grid)


def _wrapped(text: str, indent: str) -> str:
    return textwrap.fill(
        text,
        max(shutil.get_terminal_size().columns, len(indent) + 1),
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def number(value: object) -> str:
    """Format a number of any size; a missing one is a dash."""
    return f"{value:.3g}" if isinstance(value, int | float) else "-"
