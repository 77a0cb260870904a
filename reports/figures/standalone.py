"""Charts as pictures that stand by themselves: SVG documents in the light theme, and PNG made of them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from functools import cache
from xml.sax.saxutils import escape, quoteattr

import resvg_py

from reports.figures.legend import LegendEntry, legend_of
from reports.figures.palette import light_palette
from reports.figures.renderer import CHARACTER_EM, WIDE_PX, svg
from reports.figures.report_charts import ReportChart

PNG_ZOOM = 2
_MARGIN_PX = 24
_TITLE_PX = 16
_WHERE_PX = 13
_LEGEND_PX = 12.5
_LINE = 1.45
_SWATCH_PX = 26
_GAP_PX = 18
_HEIGHT = re.compile(r'<svg[^>]* height="([\d.]+)"')
# What XML 1.0 has no way to say (section 2.2).
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class NoFontError(Exception):
    """A machine without any of the fonts, on which pictures would have no text."""


def svg_document(shown: ReportChart) -> str:
    """A chart with its title, where its figures are from, and its legend, as an SVG file."""
    palette = light_palette()
    width = WIDE_PX + 2 * _MARGIN_PX
    title = _lines(shown.chart.label, _TITLE_PX)
    where = _lines(shown.where, _WHERE_PX)
    y = float(_MARGIN_PX)
    parts: list[str] = []
    for lines, size, style in ((title, _TITLE_PX, _INK_BOLD), (where, _WHERE_PX, _SOFT)):
        for line in lines:
            y += size * _LINE
            parts.append(_text(line, _MARGIN_PX, y - size * 0.4, size, style))
    y += _GAP_PX / 2
    drawn = svg(shown.chart, width=WIDE_PX)
    height = _HEIGHT.search(drawn)
    assert height is not None
    parts.append(drawn.replace("<svg", f'<svg x="{_MARGIN_PX}" y="{y:g}"', 1))
    y += float(height[1])
    for row in _legend_rows(legend_of(shown.chart)):
        y += _LEGEND_PX * 1.7
        parts += [part for x, entry in row for part in _legend_entry(entry, x, y)]
    y += _MARGIN_PX
    label = _sayable(shown.chart.label)
    text = (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y:g}" viewBox="0 0 {width} {y:g}" '
        f'role="img" xml:space="preserve" aria-label={quoteattr(label)} '
        f"font-family={quoteattr(palette.font_family)}>\n"
        f"<title>{escape(label)}</title>\n<desc>{escape(_sayable(shown.where))}</desc>\n"
        f'<rect width="100%" height="100%" fill="var(--panel)"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )
    # Names in the drawing may hold what a page bears and a document does not.
    return palette.fill_in(_NO_XML.sub(_REPLACEMENT, text))


def png(document: str) -> bytes:
    """A picture of an SVG document, twice as large, for screens with small pixels.

    Raises:
        NoFontError: when this machine has none of the fonts.
    """
    if not _writes_text():
        raise NoFontError(
            f"png needs one of the fonts {light_palette().font_family}, got a machine without them; "
            "install one (Debian: fonts-dejavu-core), or use svg"
        )
    return resvg_py.svg_to_bytes(svg_string=document, zoom=PNG_ZOOM)


@cache
def _writes_text() -> bool:
    size = '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20">'
    family = quoteattr(light_palette().font_family)
    letter = f'{size}<text y="18" font-size="18" font-family={family}>M</text></svg>'
    return resvg_py.svg_to_bytes(svg_string=letter) != resvg_py.svg_to_bytes(svg_string=f"{size}</svg>")


_INK_BOLD = 'fill="var(--ink)" font-weight="600"'
_SOFT = 'fill="var(--soft)"'


def _text(text: str, x: float, y: float, size: float, style: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" {style}>{escape(text)}</text>'


def _lines(text: str, size: float) -> list[str]:
    """Text broken where the picture ends."""
    return textwrap.wrap(_sayable(text), int(WIDE_PX / (size * CHARACTER_EM)), max_lines=4) or [""]


def _sayable(text: str) -> str:
    return _NO_XML.sub(_REPLACEMENT, " ".join(text.split()))


def _legend_rows(entries: Sequence[LegendEntry]) -> Iterator[list[tuple[float, LegendEntry]]]:
    """Entries with where they begin, as many beside each other as there is room for."""
    row: list[tuple[float, LegendEntry]] = []
    x = float(_MARGIN_PX)
    for entry in entries:
        takes = _SWATCH_PX + len(_legend_text(entry)) * _LEGEND_PX * CHARACTER_EM + _GAP_PX
        if row and x + takes > WIDE_PX + _MARGIN_PX:
            yield row
            row, x = [], float(_MARGIN_PX)
        row.append((x, entry))
        x += takes
    if row:
        yield row


def _legend_text(entry: LegendEntry) -> str:
    return textwrap.shorten(_sayable(entry.text), 120, placeholder=" …")


def _legend_entry(entry: LegendEntry, x: float, y: float) -> tuple[str, str]:
    color, middle = f"var(--{entry.color})", y - 4
    line = f'M{x:g} {middle:g}h20" stroke="{color}" fill="none'
    form = {
        "bar": f'<rect x="{x:g}" y="{y - 10:g}" width="20" height="11" fill="{color}"/>',
        "outline": f'<rect x="{x:g}" y="{y - 10:g}" width="20" height="11" fill="none" stroke="{color}" '
        'stroke-width="1.4" stroke-dasharray="4 2"/>',
        "dot": f'<circle cx="{x + 10:g}" cy="{middle:g}" r="4" fill="{color}"/>',
        "diamond": f'<path d="M{x + 3:g} {middle:g}l7 -7l7 7l-7 7z" fill="{color}"/>',
        "line": f'<path d="{line}" stroke-width="2"'
        + (f' stroke-dasharray="{entry.dash}"/>' if entry.dash else "/>"),
        "interval": f'<path d="M{x:g} {middle - 5:g}v10m0 -5h20m0 -5v10" stroke="{color}" fill="none" '
        'stroke-width="1.5"/>',
        "median": f'<path d="M{x + 10:g} {middle - 6:g}v12" stroke="{color}" stroke-width="2"/>',
    }[entry.form]
    return form, _text(_legend_text(entry), x + _SWATCH_PX, y, _LEGEND_PX, _SOFT)
