"""Which strategy ratios refer to, whatever order records are in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_run import DIED, Case, write_run

from reports.case_row import is_usable, rates_of
from reports.compare import baseline_of
from reports.load import load
from reports.shapes import shapes_of

PLAIN = Case(workload="w", strategy="all-reduce", p50_s=0.010)
HALF = replace(PLAIN, params={"compressor": "fp16"})
TOP = replace(PLAIN, params={"compressor": "topk"})


def baseline(path: Path, cases: list[Case], *, backwards: bool) -> tuple[str | None, list[str]]:
    """The baseline that `all-reduce` names, and the notes on it."""
    run = load(write_run(path / "run", cases, baseline="all-reduce"))
    (by_name,) = shapes_of(run).values()
    ordered = dict(sorted(by_name.items(), reverse=backwards))
    rates = {name: rates_of(filter(is_usable, records)) for name, records in ordered.items()}
    notes: list[str] = []
    return baseline_of(run, ordered, rates, notes), notes


@pytest.mark.parametrize("backwards", [False, True])
def test_the_strategy_of_just_that_name_is_the_baseline(tmp_path: Path, *, backwards: bool) -> None:
    assert baseline(tmp_path, [PLAIN, HALF], backwards=backwards) == ("all-reduce", [])


@pytest.mark.parametrize("backwards", [False, True])
def test_of_several_that_a_bare_name_may_mean_it_is_always_the_same(
    tmp_path: Path, *, backwards: bool
) -> None:
    assert baseline(tmp_path, [HALF, TOP], backwards=backwards) == ("all-reduce:compressor=fp16", [])


@pytest.mark.parametrize("backwards", [False, True])
def test_nothing_stands_in_for_a_baseline_without_a_figure_but_with_a_note(
    tmp_path: Path, *, backwards: bool
) -> None:
    failed = replace(PLAIN, problems=dict.fromkeys(range(3), ("failed", DIED)))
    name, notes = baseline(tmp_path, [failed, HALF], backwards=backwards)
    assert name == "all-reduce:compressor=fp16"
    assert [note.partition(";")[0] for note in notes] == ["Baseline all-reduce has no figure here"]
