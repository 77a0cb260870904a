"""Marks: one table of symbols and words for every medium, and the reason of a row without a rank."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

from synthetic_run import DIED, NONE, SINGLE, Case, write_run

import reports
from harness.records.outcome import Equivalence
from reports.charts.in_page import charts_source
from reports.compare import build
from reports.load import load
from reports.marks import FORMS, legend_of, why_unranked
from reports.rows.parts import MarkKind
from reports.rows.report import Comparison

ALONE = Case(workload="w", p50_s=0.02, **SINGLE)
CASES = [
    ALONE,
    Case(workload="w", strategy="all-reduce"),
    Case(workload="w", **NONE),
    Case(workload="w", strategy="wrong", equivalent=False),
    Case(workload="w", strategy="unchecked", equivalent=None),
    Case(workload="w", strategy="ps", problems=dict.fromkeys(range(3), ("failed", DIED))),
]


def test_a_legend_explains_the_symbols_of_its_marks() -> None:
    assert set(FORMS) == set(get_args(MarkKind))
    assert all(f"{form.symbol} " in legend_of(FORMS) for form in FORMS.values())
    legend = legend_of({"equivalent", "reference", "control", "twin"})
    assert legend == "✓ equivalent to one device, – no communication or A/A copy"


def test_charts_draw_the_symbols_of_the_table() -> None:
    source = charts_source()
    for kind, form in FORMS.items():
        (symbol,) = re.findall(rf'"{kind}": \["(.*?)"', source)
        assert symbol.encode().decode("unicode_escape") == form.symbol


def test_a_row_without_a_rank_has_a_reason_and_the_speed_limit_is_last(
    compare: Callable[..., Comparison],
) -> None:
    rows = compare(CASES).rows
    assert {row.strategy: why_unranked(row) for row in rows} == {
        "all-reduce": "",
        "single": "",
        "unchecked": "not checked",
        "wrong": "not equivalent",
        "none": "no communication",
        "ps": "failed",
    }
    assert [row.strategy for row in rows if row.status == "ok"][-1] == "none"


def test_a_row_without_an_interval_has_too_few_repeats(compare: Callable[..., Comparison]) -> None:
    (row,) = compare([ALONE], n_repeats=1).rows
    assert why_unranked(row) == "too few repeats"


def test_an_unchecked_strategy_names_the_reason_of_its_check(tmp_path: Path) -> None:
    run = load(write_run(tmp_path / "run", CASES))
    check = Equivalence(checked=False, reason="the check did not end")
    records = tuple(
        replace(record, equivalence=check) if record.strategy == "unchecked" else record
        for record in run.records
    )
    (comparison,) = build([replace(run, stored=replace(run.stored, records=records))]).comparisons
    (row,) = [row for row in comparison.rows if row.strategy == "unchecked"]
    assert why_unranked(row) == "not checked: the check did not end"


def test_reasons_are_in_the_rows_of_markdown(tmp_path: Path) -> None:
    text = reports.render([write_run(tmp_path / "run", CASES)], "md")
    for name, cells in (
        ("wrong", "– (not equivalent) | ✗ not equivalent"),
        ("none", "– (no communication) | – no communication"),
    ):
        assert f"| {name} | {cells} |" in text
