"""Legends in the page: the words and colours that the charts have as files."""

from __future__ import annotations

import re
from html import unescape
from importlib import resources
from pathlib import Path

import pytest

import reports
from reports.compare import build
from reports.figures.legend import KINDS, legend_of
from reports.figures.report_charts import report_charts
from reports.figures.specification import Axis, Bar, BarChart, Lane
from reports.load import load, read_steps
from reports.pages.pictures import Pictures

_FIGURE = re.compile(
    r'<figure class="chart" data-chart="([^"]+)">.*?<figcaption class="legend">(.*?)</figcaption>', re.DOTALL
)
_FORM = re.compile(r'<span><i class="([^"]+)"></i>(.*?)</span>')


def test_a_page_and_a_file_have_the_same_legend(full_run: Path) -> None:
    page = reports.render([full_run], "html")
    in_page = {
        chart: [unescape(text) for _, text in _FORM.findall(legend)]
        for chart, legend in _FIGURE.findall(page)
    }
    as_files = {
        each.id: [entry.text for entry in legend_of(each.chart) if entry.form != "line"]
        for each in report_charts(build([load(full_run)], read_steps=read_steps))
    }
    assert in_page == as_files
    assert any(len(texts) > 3 for texts in in_page.values())


def test_no_legend_reads_as_one_of_a_strategy_named_none(full_run: Path) -> None:
    texts = {
        entry.text
        for each in report_charts(build([load(full_run)], read_steps=read_steps))
        for entry in legend_of(each.chart)
        if entry.form != "line"
    }
    assert any(text.startswith("on the front") for text in texts)
    assert not [text for text in texts if re.search(r"\b(none|single|all-reduce)\b", text)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_style_sheet_has_the_colour_of_a_bar(kind: str) -> None:
    lane = Lane(key="a", name="a", mark="", bars=(Bar(kind=kind, end=1.0, tip=""),))
    chart = BarChart(label="", axis=Axis(name="", unit="number"), lanes=(lane,))
    picture = Pictures(room=0).add("a", chart)
    (entry,) = picture.forms
    styles = resources.files("reports.templates").joinpath("report.css").read_text(encoding="utf-8")
    form, color, text = KINDS[kind]
    assert (entry.form, entry.color, entry.text) == (form, color, text)
    assert f".form.{color} {{ --form: var(--{color}); }}" in styles
    assert f".form.{form}" in styles
