"""Parts of every page: templates, tables as markup, and the compressed script with its hashes."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache, lru_cache
from importlib import resources

import jinja2
from markupsafe import Markup, escape

from reports.charts.in_page import charts_source, compressed, echarts_source
from reports.quantities import Cell, Heading, Table
from reports.shapes import brief

_CODE = re.compile(r"`([^`]+)`")
_INTERVAL = re.compile(r"(\(CI [^()]*\))")


def prose(text: str) -> Markup:
    """Text as markup, with code between backticks; a single backtick stays."""
    # Odd parts are the groups of the matches.
    code = Markup("<code>{}</code>")
    parts = enumerate(_CODE.split(text))
    return Markup("").join(code.format(part) if i % 2 else part for i, part in parts)


def whole_intervals(text: str) -> Markup:
    """Text as markup, without line breaks inside intervals such as `(CI 1.25–1.31, n = 3)`."""
    interval = Markup('<span class="whole">{}</span>')
    parts = enumerate(_INTERVAL.split(text))
    return Markup("").join(interval.format(part) if i % 2 else part for i, part in parts)


# Tables of thousands of cells share most of their texts.
@lru_cache(maxsize=100_000)
def _escaped(text: str) -> str:
    return str(escape(text))


def table_markup(table: Table, name: str = "") -> Markup:
    """A table that scrolls sideways and can be sorted and filtered by the page's script.

    Args:
        name: the table's name for the script.
    """
    caption = _escaped(table.caption)
    body = []
    for number, row in enumerate(table.rows):
        key = table.keys[number] if table.keys else row[0].text if table.is_of_strategies else None
        start = "<tr>" if key is None else f'<tr data-key="{_escaped(key)}">'
        cells = map(_cell, table.columns[1:], row[1:])
        body.append(f'{start}<th scope="row">{_content(row[0], table.columns[0])}</th>{"".join(cells)}</tr>')
    named = f' data-table="{name}"' if name else ""
    return Markup(  # noqa: S704 - every text in it is escaped above
        f'<div class="scroll" role="group" tabindex="0" aria-label="{caption}">'
        f'<table class="sortable"{named}>'
        f"<caption><span>{caption}</span></caption>"
        f"<thead><tr>{''.join(map(_heading, table.columns))}</tr></thead>\n"
        f"<tbody>{chr(10).join(body)}</tbody></table></div>\n"
    )


def _heading(column: Heading) -> str:
    numeric = ' class="num"' if column.numeric else ""
    key = f' data-column="{_escaped(column.key)}"' if column.key else ""
    return f'<th scope="col"{numeric}{key}>{_escaped(column.name)}</th>'


def _cell(column: Heading, cell: Cell) -> str:
    words = "" if column.numeric else ' class="words"'
    value = "" if cell.value is None else f' data-v="{cell.value:.5g}"'
    return f"<td{words}{value}>{_content(cell, column)}</td>"


def _content(cell: Cell, column: Heading) -> str:
    text = prose(cell.text) if column.prose else _escaped(cell.text)
    if cell.link:
        text = f'<a href="#{_escaped(cell.link)}">{text}</a>'
    if not cell.note:
        return text
    note = _escaped(cell.note)
    # Ranges below a number may break behind each comma.
    return f"{text}<small>{note.replace(', ', ', <wbr>') if column.numeric else note}</small>"


def template(name: str) -> jinja2.Template:
    """A template of a page, in which everything is escaped that is not markup already."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("reports", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"brief": brief, "prose": prose, "table": table_markup, "whole": whole_intervals}
    environment.globals |= _script()
    return environment.get_template(name)


@cache
def _script() -> dict[str, str]:
    """The page's script, compressed, the short one that unpacks and runs it, and the hashes of both."""
    own = _source("page.js")
    whole = "\n".join((echarts_source(), charts_source(), own))
    loader = _source("loader.js")
    return {
        # Files of this package, and none of them holds the end of a script element.
        "packed_script": Markup(compressed(whole)),  # noqa: S704
        "loader": Markup(loader),  # noqa: S704
        "hashes": " ".join(f"'sha256-{_hash(source)}'" for source in (loader, whole)),
    }


def _source(name: str) -> str:
    return resources.files("reports").joinpath("templates", name).read_text(encoding="utf-8")


def _hash(source: str) -> str:
    return base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
