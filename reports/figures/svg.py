"""The few SVG primitives that the charts need; all text goes through `Markup.format`, which escapes it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from markupsafe import Markup

# Generous, for the widest of the system fonts in semibold: text must not run into the bars.
CHARACTER_PX = 8.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """From data to pixels, linear or logarithmic."""

    low: float
    high: float
    left: float
    right: float
    log: bool = False

    def at(self, value: float) -> float:
        """Pixel of a value, held within the scale."""
        value = min(max(value, self.low), self.high)
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.left + share * (self.right - self.left)

    def ticks(self, most: int) -> list[float]:
        """Round values within the scale, at most `most` of them."""
        ticks = self._log_ticks() if self.log else self._linear_ticks(most)
        while len(ticks) > most:
            ticks = ticks[::2]
        return ticks

    def _linear_ticks(self, most: int) -> list[float]:
        rough = (self.high - self.low) / max(1, most)
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        return [i * step for i in range(first, math.floor(self.high / step + 1e-9) + 1)]

    def _log_ticks(self) -> list[float]:
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        marks = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
        return [mark for mark in marks if self.low <= mark <= self.high]


def chart(parts: Iterable[Markup], *, width: float, height: float, label: str, kind: str) -> Markup:
    """An SVG element with an accessible name; `kind` is its CSS class."""
    return Markup(
        '<svg class="chart {}" role="img" aria-label="{}" viewBox="0 0 {} {}" width="{}" height="{}"'
        ' preserveAspectRatio="xMinYMin meet">{}</svg>'
    ).format(kind, label, _px(width), _px(height), _px(width), _px(height), Markup("").join(parts))


def text(x: float, y: float, content: str, *, kind: str = "", anchor: str = "start") -> Markup:
    """One line of text."""
    return Markup('<text x="{}" y="{}" class="{}" text-anchor="{}">{}</text>').format(
        _px(x), _px(y), kind, anchor, content
    )


def clipped(x: float, y: float, content: str, *, room: float, kind: str = "") -> Markup:
    """One line of text that loses its middle where it would run out of its room; its tooltip is all of it.

    Names of strategies differ at their ends, by their parameters.
    """
    fits = max(4, int(room / CHARACTER_PX))
    n_last = (fits - 1) // 2
    shown = content if len(content) <= fits else f"{content[: fits - 1 - n_last]}…{content[-n_last:]}"
    return Markup('<text x="{}" y="{}" class="{}"><title>{}</title>{}</text>').format(
        _px(x), _px(y), kind, content, shown
    )


def bar(scale: Scale, span: tuple[float, float], lane: tuple[float, float], *, kind: str, tip: str) -> Markup:
    """A bar with a tooltip; a hair of it is left when it spans nothing.

    Args:
        scale: of the horizontal axis.
        span: first and last value.
        lane: top and height in pixels.
        kind: CSS classes.
        tip: tooltip.
    """
    left, right = scale.at(span[0]), scale.at(span[1])
    return Markup('<rect x="{}" y="{}" width="{}" height="{}" class="{}"><title>{}</title></rect>').format(
        _px(left), _px(lane[0]), _px(max(right - left, 1.0)), _px(lane[1]), kind, tip
    )


def line(x1: float, y1: float, x2: float, y2: float, *, kind: str) -> Markup:
    """A straight line."""
    return Markup('<line x1="{}" y1="{}" x2="{}" y2="{}" class="{}"/>').format(
        _px(x1), _px(y1), _px(x2), _px(y2), kind
    )


def dots(points: Iterable[tuple[float, float]], *, kind: str) -> Markup:
    """Many dots as one path: a zero-length stroke with round ends is a dot."""
    path = "".join(f"M{_px(x)} {_px(y)}h0" for x, y in points)
    return Markup('<path d="{}" class="{}"/>').format(path, kind) if path else Markup("")


def whisker(scale: Scale, low: float, high: float, y: float, *, half: float) -> Markup:
    """An interval as a line with caps; an open end has none."""
    x1, x2 = scale.at(low), scale.at(high)
    parts = [line(x1, y, x2, y, kind="whisker-back"), line(x1, y, x2, y, kind="whisker")]
    parts += [
        line(x, y - half, x, y + half, kind="whisker")
        for x, value in ((x1, low), (x2, high))
        if scale.low <= value <= scale.high
    ]
    return Markup("").join(parts)


def axis(scale: Scale, top: float, bottom: float, show: Callable[[float], str], *, most: int) -> Markup:
    """Grid lines with their values below."""
    parts = []
    for tick in scale.ticks(most):
        x = scale.at(tick)
        # The outermost labels would run out of the picture when centred.
        anchor = "start" if x < scale.left + 12 else "end" if x > scale.right - 12 else "middle"
        parts += [
            line(x, top, x, bottom, kind="grid"),
            text(x, bottom + 15, show(tick), kind="tick", anchor=anchor),
        ]
    return Markup("").join(parts)


def _px(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
