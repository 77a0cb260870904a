"""Scaling: which comparisons make a curve, what it is held against, and its table."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_run import DIED, NONE, SINGLE, Case, write_run

from reports.compare import build
from reports.load import load
from reports.pages.data import to_json
from reports.pages.markdown import to_markdown
from reports.rows import Report, Scaling, ScalingLine
from reports.tables.curves import scaling_table

Build = Callable[..., Report]

ALONE = Case(workload="w", p50_s=0.020, noise=0.001, **SINGLE)


@pytest.fixture
def report_of(tmp_path: Path) -> Build:
    return lambda cases, **options: build([load(write_run(tmp_path / "run", cases, **options))])


def reduce(workers: int, p50_s: float, **fields: object) -> Case:
    usual = {"workload": "w", "strategy": "all-reduce", "noise": 0.001}
    return Case(workers=workers, p50_s=p50_s, **(usual | fields))  # type: ignore[arg-type]


def line(scaling: Scaling, strategy: str) -> ScalingLine:
    (only,) = [each for each in scaling.lines if each.strategy == strategy]
    return only


def test_a_global_batch_over_more_workers_is_strong_scaling_against_single(report_of: Build) -> None:
    (scaling,) = report_of([ALONE, reduce(2, 0.0125), reduce(4, 0.0080)]).scaling
    assert (scaling.kind, scaling.batch_size) == ("strong", 64)
    reduced = line(scaling, "all-reduce")
    assert (reduced.reference, reduced.reference_devices, reduced.mark) == ("single", 1, "equivalent")
    assert [(p.workers, p.replicas, p.n_devices) for p in reduced.points] == [(2, 1, 2), (4, 1, 4)]
    assert [p.efficiency.value for p in reduced.points] == pytest.approx([0.8, 0.625], rel=0.02)
    assert [p.perfect_rate for p in reduced.points] == pytest.approx([6400, 12800], rel=0.01)
    interval = reduced.points[1].efficiency.interval
    assert interval is not None
    assert interval.contains(reduced.points[1].efficiency.value)
    assert interval.high - interval.low < 0.05
    assert reduced.points[0].efficiency.n == 3
    # It stands in both comparisons, and is one device in each.
    assert [p.n_devices for p in line(scaling, "single").points] == [1]


def test_what_each_replica_takes_is_kept_in_weak_scaling(report_of: Build) -> None:
    weak = {"batch_rule": "per-replica"}
    cases = [
        reduce(2, 0.025, batch_size=128, **weak),
        reduce(2, 0.040, batch_size=256, replicas=2, **weak),
    ]
    (scaling,) = report_of([replace(ALONE, batch_size=64, **weak), *cases]).scaling
    assert (scaling.kind, scaling.batch_size) == ("weak", 64)
    reduced = line(scaling, "all-reduce")
    assert [p.n_devices for p in reduced.points] == [2, 4]
    assert [p.efficiency.value for p in reduced.points] == pytest.approx([0.8, 0.5], rel=0.02)


def test_single_on_other_examples_is_no_reference(report_of: Build) -> None:
    other = replace(ALONE, batch_size=128, p50_s=0.5, batch_rule="per-replica")
    cases = [reduce(n, 0.02, batch_size=64 * n, batch_rule="per-replica") for n in (2, 4)]
    (scaling,) = report_of([other, *cases]).scaling
    (reduced,) = scaling.lines
    assert (reduced.reference, reduced.reference_devices) == ("all-reduce", 2)


def test_without_single_a_strategy_is_held_against_its_own_smallest_size(report_of: Build) -> None:
    cases = [reduce(2, 0.010), reduce(4, 0.010), reduce(4, 0.008, strategy="ps")]
    report = report_of(cases, baseline="all-reduce")
    (scaling,) = report.scaling
    reduced = line(scaling, "all-reduce")
    assert (reduced.reference, reduced.reference_devices) == ("all-reduce", 2)
    assert [p.efficiency.value for p in reduced.points] == pytest.approx([1.0, 0.5], rel=0.01)
    assert reduced.points[0].efficiency.why_no_interval == "the reference"
    assert [p.n_devices for p in line(scaling, "ps").points] == [4]
    table = scaling_table(scaling)
    assert [column.name for column in table.columns][3:] == ["2 workers", "4 workers"]
    shown = {cells[0].text: cells for cells in table.rows}
    assert shown["ps"][3].text == "–"
    assert (shown["all-reduce"][2].text, shown["all-reduce"][2].note) == ("itself", "on 2 devices")
    assert "50 % (" in shown["all-reduce"][4].note
    assert "n=3, " in shown["all-reduce"][4].note


def test_only_what_differs_in_size_alone_is_one_curve(report_of: Build) -> None:
    cases = [ALONE, reduce(2, 0.01), reduce(4, 0.01, batch_size=128), reduce(4, 0.01, xla=True)]
    assert report_of(cases).scaling == ()


def test_what_has_no_rate_has_no_point_and_marks_go_along(report_of: Build) -> None:
    gone = dict.fromkeys(range(3), ("failed", DIED))
    cases = [
        ALONE,
        replace(ALONE, is_twin=True, params={"aa": True}),
        Case(workload="w", p50_s=0.004, **NONE),
        reduce(2, 0.01),
        reduce(4, 0.01, equivalent=False),
        reduce(8, 0.01, problems=gone),
    ]
    (scaling,) = report_of(cases).scaling
    marks = {each.strategy: each.mark for each in scaling.lines}
    assert marks == {"single": "reference", "none": "control", "all-reduce": "not-equivalent"}
    assert [p.n_devices for p in line(scaling, "all-reduce").points] == [2, 4]


def test_one_size_is_no_curve(report_of: Build) -> None:
    report = report_of([ALONE, reduce(2, 0.01)])
    assert report.scaling == ()
    assert "Scaling" not in to_markdown(report)


def test_it_is_in_markdown_and_json(report_of: Build) -> None:
    report = report_of([ALONE, reduce(2, 0.0125), reduce(4, 0.0080)])
    assert "## Scaling: w" in to_markdown(report)
    assert '"reference": "single"' in to_json(report)
