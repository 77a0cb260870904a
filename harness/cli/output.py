"""Answers of commands, for a person or a program: tables, one JSON document, one line for an error."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TextIO

from harness.canonical import json_value
from harness.errors import EXIT_OK
from harness.records.safe_text import plain


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The answer of one command.

    Args:
        document: printed with --json; mappings, sequences and scalars.
        show: prints the same for a person.
    """

    document: object
    show: Callable[[], None]
    exit_status: int = EXIT_OK


Row = Sequence[str]
_GAP = 2


def emit_json(document: object, *, stream: TextIO | None = None) -> None:
    """Print one JSON document; numbers that are not finite become null."""
    to = stream or sys.stdout
    knows_all = (to.encoding or "utf-8").lower() in ("utf-8", "utf8")
    print(json.dumps(json_value(document), indent=2, ensure_ascii=not knows_all), file=to)


def say(line: str = "") -> None:
    """Print one line to a person, indented by the spaces it begins with.

    On a terminal it breaks between words, so that paths stay whole.
    """
    text = plain(line)
    if text:
        indent = " " * (len(line) - len(line.lstrip(" ")))
        text = _indented(text, indent) if sys.stdout.isatty() else indent + text
    print(text)  # noqa: T201 - the answer that a person asked for


def say_text(text: str) -> None:
    """Print text of our own making as it stands, with a newline at its end."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def warn(line: str) -> None:
    """Print one line about the command itself, apart from its result."""
    # Where nobody reads it or the disk of its log is full, the command's end says enough.
    with contextlib.suppress(OSError):
        print(plain(line), file=sys.stderr)  # noqa: T201 - what a command says at its end


def table(headers: Row, rows: Sequence[Row]) -> None:
    """Print a table; on a terminal, wide cells wrap except in the first column."""
    safe = [[plain(cell) for cell in row] for row in rows]
    show = _rich_table if sys.stdout.isatty() else _text_table
    show(headers, safe)


def lined_table(headers: Row, rows: Sequence[Row], lines: Sequence[str]) -> None:
    """Print a table with an indented line below each row."""
    table_rows = [headers, *rows]
    widths = [max(map(len, column)) for column in zip(*table_rows, strict=True)]
    for row, line in zip(table_rows, ("", *lines), strict=True):
        cells = (plain(cell).ljust(width) for cell, width in zip(row, widths, strict=True))
        say_text("  ".join(cells).rstrip())
        if line:
            say(f"  {line}")


def _text_table(headers: Row, rows: Sequence[Row]) -> None:
    widths = [max(len(row[column]) for row in (headers, *rows)) for column in range(len(headers))]
    for row in (headers, *rows):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        say_text(line.rstrip())


def _rich_table(headers: Row, rows: Sequence[Row]) -> None:
    # rich costs 50 ms to import, which a pipe need not pay.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for index, header in enumerate(headers):
        drawn.add_column(header, overflow="fold", no_wrap=index == 0)
    for row in rows:
        # Text, not str: brackets in a name would be read as markup.
        drawn.add_row(*(Text(cell) for cell in row))
    Console().print(drawn)


def _indented(text: str, indent: str) -> str:
    return textwrap.fill(
        text,
        max(_columns(), len(indent) + 1),
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _columns() -> int:
    return shutil.get_terminal_size().columns


def n_bytes(value: object) -> str:
    """Write a number of bytes for a person, in powers of ten as networks count."""
    if not isinstance(value, int | float):
        return "-"
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.0f} B"


def number(value: object) -> str:
    """Write a number of any size for a person; what is missing is a dash."""
    return f"{value:.3g}" if isinstance(value, int | float) else "-"
