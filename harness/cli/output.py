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
_INDENT = 4
_LEAST_SENTENCE_WIDTH = 40


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


def table(headers: Row, rows: Sequence[Row], *, n_keys: int = 1) -> None:
    """Print a table: drawn by rich on a terminal, aligned text elsewhere.

    Args:
        n_keys: columns that tell rows apart; where a terminal is too narrow for all columns, the table goes
            on below itself, and these are repeated.
    """
    safe = [[plain(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        _text_table(headers, safe)
        return
    widths = [max(len(row[column]) for row in (headers, *safe)) for column in range(len(headers))]
    for index, part in enumerate(fitting_parts(widths, n_keys=n_keys, width=_columns())):
        if index:
            say()
        _rich_table([headers[c] for c in part], [[row[c] for c in part] for row in safe])


def sentence_table(headers: Row, rows: Sequence[Row], *, n_keys: int = 1) -> None:
    """Print a table whose last columns are sentences and lists.

    Off a terminal a row is a line, however long. On a terminal that is too narrow for such lines a row's
    sentences stand one below the other, broken between words: beside its keys, or below them where there is
    too little room beside them.

    Args:
        n_keys: columns before the sentences, which name a row.
    """
    safe = [[plain(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in (headers, *safe)) for column in range(len(headers))]
    if not sys.stdout.isatty() or sum(widths) + _GAP * (len(widths) - 1) <= _columns():
        table(headers, rows)
        return
    beside = sum(widths[:n_keys]) + _GAP * n_keys
    has_room = _columns() - beside >= _LEAST_SENTENCE_WIDTH
    indent = " " * (beside if has_room else _INDENT)
    for row in safe:
        keys = "".join(
            cell.ljust(width + _GAP) for cell, width in zip(row, widths[:n_keys], strict=False)
        ).rstrip()
        sentences = [_indented(cell, indent) for cell in row[n_keys:] if cell]
        if has_room and sentences:
            sentences[0] = keys.ljust(beside) + sentences[0][beside:]
        else:
            sentences.insert(0, keys)
        for text in sentences:
            say_text(text)


def fitting_parts(widths: Sequence[int], *, n_keys: int, width: int) -> list[list[int]]:
    """Share a table's columns out over as few parts as fit, each led by the key columns.

    A part has at least one column of its own, whether it fits or not.

    Args:
        widths: of the columns, in letters.
        width: of the terminal, in letters.
    """
    keys = list(range(n_keys))
    parts = [keys.copy()]
    for column in range(n_keys, len(widths)):
        taken = sum(widths[c] + _GAP for c in parts[-1])
        if taken + widths[column] > width and len(parts[-1]) > n_keys:
            parts.append(keys.copy())
        parts[-1].append(column)
    return parts


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
    for header in headers:
        drawn.add_column(header, overflow="fold")
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
