"""Frame of a chart: where labels, plot and values lie at one width of the page.

Each chart exists for a wide and a narrow page, because an SVG that shrinks takes its letters with it.
Labels stand left of the bars on the wide one and above them on the narrow one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from markupsafe import Markup

from reports.figures.svg import clipped, text
from reports.rows import Row

Drawn = TypeVar("Drawn")
_WIDE = 1060
_NARROW = 340
_LABEL_WIDE = 222
_SYMBOLS = {
    "equivalent": "✓",
    "reference": "✓",
    "not-equivalent": "✗",
    "within-bound": "≈",
    "beyond-bound": "✗",
    "control": "○",
    "twin": "○",
    "undecidable": "?",
    "not-checked": "?",
    "statistical": "~",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Where labels, plot and values lie at one width of the page."""

    width: int
    left: float
    right: float
    label_above: float
    most_ticks: int

    @property
    def wide(self) -> bool:
        """Whether labels stand beside the bars."""
        return self.label_above == 0

    @property
    def width_class(self) -> str:
        """The class by which the style sheet shows a chart on pages of its width only."""
        return "wide" if self.wide else "narrow"


def both(draw: Callable[[Drawn, Frame], Markup], drawn: Drawn) -> Markup:
    """A chart for wide pages and print, and one for narrow pages; the style sheet shows one of them."""
    wide = Frame(width=_WIDE, left=_LABEL_WIDE, right=_WIDE - 236, label_above=0, most_ticks=7)
    narrow = Frame(width=_NARROW, left=2, right=_NARROW - 8, label_above=18, most_ticks=4)
    return draw(drawn, wide) + draw(drawn, narrow)


def row_label(row: Row, frame: Frame, top: float, middle: float) -> Markup:
    """The strategy with the symbol of its mark."""
    symbol = _SYMBOLS[row.mark.kind] if row.status == "ok" else "!"
    if frame.wide:
        name = clipped(18, top + middle + 4, row.strategy, room=_LABEL_WIDE - 26, kind="label")
        return text(0, top + middle + 4, symbol, kind=f"symbol {row.mark.kind}") + name
    return text(frame.left, top + 14, symbol, kind=f"symbol {row.mark.kind}") + clipped(
        frame.left + 16, top + 14, row.strategy, room=152, kind="label"
    )
