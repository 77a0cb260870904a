"""Charts as SVG text, by the same scripts that draw them in the page."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from functools import cache
from importlib import resources
from typing import Protocol, cast

from quickjs import Context

from reports.figures.specification import Chart, Line, LineChart

WIDE_PX = 1060
NARROW_PX = 340
# Of the widest of the system fonts, as a share of the font's size: names must not run into the bars.
CHARACTER_EM = 0.62
# Each uses what is in those before it.
_SCRIPTS = ("colors", "numbers", "names", "axes", "bars", "points", "lines", "strips", "charts")
_SURROUNDINGS = """
globalThis.setTimeout = () => 0;
globalThis.clearTimeout = () => {};
"""
_MEASURING = """
echarts.setPlatformAPI({
  measureText: (text, font) => {
    const size = parseFloat(/([\\d.]+)px/.exec(font ?? "")?.[1] ?? 12);
    return { width: String(text).length * size * %s };
  },
});
"""
_TAG = re.compile(r"<[^<>]*>")
# What ECharts leaves for scripts of its own, what goes without saying or is said once for all texts, and
# decimals behind the first.
_NEEDLESS = re.compile(
    r' (?:ecmeta_[a-z_]+|xmlns:xlink|baseProfile|version|pointer-events|xml:space)="[^"]*"| class="zr[^"]*"'
    r'| dominant-baseline="central"| text-anchor="start"| style="font-size:12px;(?:font-family:inherit;)?"'
    r'|(?<=;)font-family:inherit;| fill="#000"(?! fill-opacity)|(?<=\.\d)\d+(?=[ ")LhlZM])'
)
_STYLE = re.compile(r"<style ?>.*?</style>|(?<=>)\n", re.DOTALL)
_OF_ALL_TEXTS = '<svg font-size="12" dominant-baseline="central"'
_FONTS = re.compile(r'style="font-size:(\d+)px;font-weight:(\d+);"')
_IDS = re.compile(r"\bzr\d+-")
_LEVEL = re.compile(r"M([\d.]+) ([\d.]+)L([\d.]+) \2(?=M|\")")
_DOT_PX = 0.2
_DIGITS = 5
_DATE_DIGITS = 8
"""Digits kept of a date in days since 1970, enough to draw several nights of one date side by side."""
_FAR = 1e300


class _Draw(Protocol):
    def __call__(self, chart: str, width: int) -> str: ...


def echarts_source() -> str:
    """Apache ECharts, as far as charts need it (licence and how it is made: `reports/figures/bundle`)."""
    return _source("bundle/echarts.min.js")


def charts_source() -> str:
    """What makes options of ECharts from specifications: `scripts`, in one function."""
    body = "\n".join(_source(f"scripts/{name}.js") for name in _SCRIPTS)
    return f'(() => {{\n"use strict";\n\n{body}}})();\n'


def as_data(chart: Chart) -> object:
    """A specification as the scripts take it: plain, and no more digits than a picture can show."""
    is_dated = isinstance(chart, LineChart) and chart.x.unit == "date"
    return _plain(chart, _DIGITS, _DATE_DIGITS if is_dated else _DIGITS)


def _plain(value: object, digits: int, x_digits: int) -> object:
    """A part of a specification as the scripts take it.

    Args:
        digits: of a number. x_digits: of a number along the horizontal axis of lines.
    """
    if isinstance(value, float):
        # JSON has no infinity: a limit that has none ends at the edge of the picture.
        if math.isnan(value):
            return None
        return float(f"{min(max(value, -_FAR), _FAR):.{digits}g}")
    if isinstance(value, tuple):
        return [_plain(item, digits, x_digits) for item in value]
    if not dataclasses.is_dataclass(value):
        return value
    # What is None is found by the scripts, but for a bar's end, which was not measured.
    plain = {
        name: _plain(item, x_digits if name == "x" else digits, x_digits)
        for name in value.__dataclass_fields__
        if (item := getattr(value, name)) is not None or name == "end"
    }
    if isinstance(value, Line):
        for name, places in (("points", value.points), ("intervals", value.intervals)):
            plain[name] = [
                [_plain(x, x_digits, x_digits), *(_plain(y, digits, digits) for y in ys)] for x, *ys in places
            ]
    return plain


def svg(chart: Chart, *, width: int) -> str:
    """Draw a chart.

    Args:
        width: of the picture in pixels; below 700, names stand above what they name.
    Returns:
        An SVG element whose colours are variables of the report's style sheet. Text in it is escaped.
    """
    return svg_of(as_data(chart), width=width)


def svg_of(data: object, *, width: int) -> str:
    """Draw a chart from its specification as data, as `svg` does."""
    specification = json.dumps(data, allow_nan=False)
    text = json.loads(_draw()(specification, width))
    # Several pictures stand in one page, where equal ids would cut one by the frame of another.
    prefix = hashlib.sha256(f"{width}{specification}".encode()).hexdigest()[:8]
    fonts: set[tuple[str, str]] = set()

    def short(tag: re.Match[str]) -> str:
        """A tag without what is needless. What stands between tags are names, which nothing may change."""
        needed = _IDS.sub(f"z{prefix}-", _NEEDLESS.sub("", tag[0]))
        fonts.update(_FONTS.findall(needed))
        return _LEVEL.sub(_dot, _FONTS.sub(r'class="f\1-\2"', needed))

    text = _TAG.sub(short, _STYLE.sub("", text)).replace("<svg", _OF_ALL_TEXTS, 1)
    end_of_head = text.index(">") + 1
    # Each font is said once.
    rules = "".join(
        f".f{size}-{weight}{{font-size:{size}px;font-weight:{weight}}}" for size, weight in sorted(fonts)
    )
    return f"{text[:end_of_head]}<style>{rules}</style>{text[end_of_head:]}" if rules else text


def _dot(level: re.Match[str]) -> str:
    """A dot of a strip in fewer characters; a level line of any other length as it is."""
    x, y, end = level.groups()
    return f"M{x} {y}h.1" if abs(float(end) - float(x)) < _DOT_PX else level[0]


@cache
def _draw() -> _Draw:
    context = Context()
    for script in (_SURROUNDINGS, echarts_source(), _MEASURING % CHARACTER_EM, charts_source()):
        context.eval(f"{script}\n;0")
    # A string that grew piece by piece is not one that QuickJS's binding takes; JSON's is.
    return cast(
        "_Draw", context.eval("(chart, width) => JSON.stringify(charts.svg(JSON.parse(chart), width))")
    )


def _source(name: str) -> str:
    return resources.files("reports.figures").joinpath(name).read_text(encoding="utf-8")
