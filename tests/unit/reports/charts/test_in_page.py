"""Charts in a page: legends, data for scripts, and the library as it was made."""

from __future__ import annotations

import hashlib
import json
import re
from html import unescape
from importlib import resources
from pathlib import Path
from typing import Literal

import pytest

import reports
from reports.charts.comparison import ranking
from reports.charts.in_page import KINDS, as_data, charts_source, echarts_source, legend_of
from reports.charts.specification import Axis, Event, Line, LineChart
from reports.compare import build
from reports.load import load, read_steps
from reports.pages.sections import SECTIONS

_FIGURE = re.compile(
    r'<figure class="chart" data-chart="([^"]+)">.*?<figcaption class="legend">(.*?)</figcaption>', re.DOTALL
)
_FORM = re.compile(r'<span><i class="form ([^"]+)"></i>(.*?)</span>')


def test_the_library_is_the_one_that_was_written_down() -> None:
    part = resources.files("reports.charts").joinpath("bundle/echarts.min.js.sha256").read_text().split()[0]
    assert hashlib.sha256(echarts_source().encode()).hexdigest() == part
    assert "</script" not in echarts_source() + charts_source()
    for licence in ("LICENSE", "LICENSE.zrender", "NOTICE"):
        assert resources.files("reports.charts").joinpath("bundle", licence).is_file()


@pytest.mark.parametrize(("unit", "x"), [("date", 20_543.375), ("seconds", 20_543.0)])
def test_days_have_the_digits_of_their_hours_and_other_numbers_do_not(
    unit: Literal["date", "seconds"], x: float
) -> None:
    chart = LineChart(
        label="",
        x=Axis(name="", unit=unit, high=20_543.375),
        y=Axis(name="", unit="number", high=20_543.375),
        lines=(Line(key="", name="", color=0, points=((20_543.375, 20_543.375),)),),
        events=(Event(x=20_543.375, text=""),),
    )
    data = json.loads(json.dumps(as_data(chart)))
    assert data["lines"][0]["points"] == [[x, 20_543.0]]
    assert (data["x"]["high"], data["y"]["high"], data["events"][0]["x"]) == (x, 20_543.0, x)


def test_legends_of_a_page_are_those_of_its_charts(full_run: Path) -> None:
    in_page = {
        chart: [unescape(text) for _, text in _FORM.findall(legend)]
        for chart, legend in _FIGURE.findall(reports.render([full_run], "html"))
    }
    report = build([load(full_run)], read_steps=read_steps)
    charts = {name: draw for section in SECTIONS for name, draw in section.charts.items()} | {
        "ranking": ranking
    }
    expected = {
        f"comparison-{i}-{name}": [entry.text for entry in legend_of(chart)]
        for i, comparison in enumerate(report.comparisons)
        for name, draw in charts.items()
        if (chart := draw(comparison)) is not None
    }
    assert expected.items() <= in_page.items()
    texts = {text for legend in in_page.values() for text in legend}
    assert any(text == "Pareto front" for text in texts)
    # A legend must not read as one of a strategy of such a name.
    assert not [text for text in texts if re.search(r"\b(none|single|all-reduce)\b", text)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_style_sheet_has_the_form_and_colour_of_a_bar(kind: str) -> None:
    styles = resources.files("reports").joinpath("templates/report.css").read_text(encoding="utf-8")
    assert f".form.{KINDS[kind].color} {{ --form: var(--{KINDS[kind].color}); }}" in styles
    assert f".form.{KINDS[kind].form}" in styles
