"""Text and tables that Markdown shows as they are, and in which GitHub sees nobody's name."""

from __future__ import annotations

import re

from harness.records.legible_text import spelt_out
from reports.tables.cells import Cell
from reports.tables.table import Table

_NOTHING = "<!-- -->"
"""Stands within what GitHub would make a link of: it looks for names once Markdown has been read, when
backslashes and entities have long become what they stand for (github/cmark-gfm, issue 181)."""
_INERT = re.compile(
    # Mentions, issues by number, addresses, and emoji by name.
    r"(?P<link>@(?=\w)|#(?=\d)|\bgh-(?=\d)|:(?=//)|\bwww(?=\.)|:(?=[\w+-]+:))"
    r"|[\\`*_{}\[\]<>()#+!|~$&-]",
    re.IGNORECASE,
)
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~$&-])")


def markdown_text(text: str) -> str:
    """Text that Markdown shows as it is, on one line, and GitHub without a mention or reference."""
    escaped = _INERT.sub(_inert, " ".join(spelt_out(text).split()))
    # "1." at the start of a line would become a list.
    return re.sub(r"^(\d+)\.", r"\1\\.", escaped)


def _inert(match: re.Match[str]) -> str:
    return _SPECIAL.sub(r"\\\1", match[0]) + (_NOTHING if match["link"] else "")


def markdown_table(table: Table) -> list[str]:
    """Lines of a table, every cell escaped."""
    return [
        "| " + " | ".join(markdown_text(column.name) for column in table.columns) + " |",
        "|" + "|".join(" ---: " if column.numeric else " --- " for column in table.columns) + "|",
        *("| " + " | ".join(_markdown_cell(cell) for cell in row) + " |" for row in table.rows),
    ]


def _markdown_cell(cell: Cell) -> str:
    return (
        f"{markdown_text(cell.text)} ({markdown_text(cell.note)})" if cell.note else markdown_text(cell.text)
    )
