"""Content of charts: data of the rows, and nothing else."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_run import SINGLE, Case, full_cases, write_run

from reports.charts import across
from reports.charts import comparison as charts
from reports.charts.in_page import legend_of
from reports.charts.specification import BarChart
from reports.compare import build
from reports.load import load, read_steps
from reports.rows.report import Comparison, Report


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    path = write_run(tmp_path_factory.mktemp("charts") / "run", full_cases())
    return build([load(path)], read_steps=read_steps)


@pytest.fixture(scope="module")
def sizes_and_links(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Two strategies on two sizes, and on links of two rates of which each is best on one."""
    cases = [Case(workload="wide-mlp", p50_s=0.061, **SINGLE)]
    for workers in (2, 4):
        cases += [
            Case(workload="wide-mlp", strategy="all-reduce", p50_s=0.07 / workers, workers=workers),
            Case(workload="wide-mlp", strategy="ps", p50_s=0.09 / workers, workers=workers),
        ]
    for mbit, slow_s, fast_s in ((100.0, 0.10, 0.05), (1000.0, 0.02, 0.04)):
        cases += [
            Case(workload="dlrm", strategy="all-reduce", p50_s=slow_s, link_mbit=(mbit, mbit)),
            Case(workload="dlrm", strategy="topk", p50_s=fast_s, payload=1e5, link_mbit=(mbit, mbit)),
        ]
    return build([load(write_run(tmp_path_factory.mktemp("sizes") / "run", cases, minutes=(1.0, 1.2)))])


def of(report: Report, workload: str) -> Comparison:
    return next(comparison for comparison in report.comparisons if comparison.workload == workload)


def test_ranking_has_a_lane_for_each_row_with_a_rate_and_cuts_what_cannot_be(report: Report) -> None:
    comparison = of(report, "wide-mlp")
    chart = charts.ranking(comparison)
    assert chart is not None
    rated = [row for row in comparison.rows if row.rate is not None]
    assert [lane.key for lane in chart.lanes] == [row.strategy for row in rated]
    assert [lane.bars[0].end for lane in chart.lanes] == [row.rate.value for row in rated if row.rate]
    assert chart.reference == next(row.rate.value for row in rated if row.is_baseline and row.rate)
    impossible = next(row for row in rated if row.status == "implausible")
    assert next(lane.mark for lane in chart.lanes if lane.key == impossible.strategy) == "implausible"
    # One figure that cannot be must not squeeze all others.
    most = max(row.rate.value for row in rated if row.rate and row.status == "ok")
    assert most < (chart.axis.high or 0.0) < 2.6 * most


def test_parts_of_a_step_follow_one_another_without_gap(report: Report) -> None:
    chart = charts.traced_split(of(report, "wide-mlp"))
    assert chart is not None
    assert chart.stacked
    for lane in chart.lanes:
        assert lane.bars[0].start == 0.0
        for before, after in zip(lane.bars, lane.bars[1:], strict=False):
            assert after.start == pytest.approx(before.end)


def test_the_host_of_gpus_has_a_bar_before_waiting(report: Report) -> None:
    comparison = of(report, "wide-mlp")
    (row,) = [row for row in comparison.rows if row.strategy == "all-reduce"]
    split = row.time_split
    assert split is not None
    on_gpu = replace(row, time_split=replace(split, host_s=split.rest_s, rest_s=split.wait_s))
    chart = charts.traced_split(replace(comparison, rows=(on_gpu,)))
    assert chart is not None
    (lane,) = chart.lanes
    assert [bar.kind for bar in lane.bars] == ["compute", "transfer", "host", "wait", "rest"]
    assert lane.bars[2].end == pytest.approx(lane.bars[2].start + split.rest_s.value)
    assert "vermilion" in {entry.color for entry in legend_of(chart)}


def test_bytes_that_were_not_measured_are_said_not_to_be(report: Report) -> None:
    chart = charts.bytes_sent(of(report, "digits-cnn"))
    assert chart is not None
    lane = next(lane for lane in chart.lanes if lane.key == "ps")
    interface = next(bar for bar in lane.bars if bar.kind == "interface")
    assert (interface.end, interface.text) == (None, "interface: not measured")


def test_the_front_of_speed_and_bytes_has_only_what_may_win(report: Report) -> None:
    comparison = of(report, "wide-mlp")
    chart = charts.trade_off(comparison)
    assert chart is not None
    on_front = {point.key for point in chart.points if point.kind == "front"}
    may_win = {row.strategy for row in comparison.rows if row.status == "ok" and row.mark.proven}
    assert on_front
    assert on_front <= may_win


def test_losses_keep_their_gaps_and_steps(report: Report) -> None:
    comparison = next(comparison for comparison in report.comparisons if comparison.curves.losses)
    by_step, by_second = charts.losses_by_step(comparison), charts.losses_by_second(comparison)
    assert by_step is not None
    assert by_second is not None
    assert (by_step.x.what, by_step.y.what, by_second.y.what) == ("step", "loss", "loss")
    for curve, line, timed in zip(comparison.curves.losses, by_step.lines, by_second.lines, strict=True):
        assert [x for x, _ in line.points] == list(map(float, curve.at_steps))
        assert [x for x, _ in timed.points] == list(curve.at_s)
        assert [y for _, y in line.points] == [y for _, y in timed.points]
        assert all(y is None or math.isfinite(y) for _, y in line.points)
        assert line.color == timed.color


def test_a_slow_round_lifts_the_lines_of_all(sizes_and_links: Report) -> None:
    chart = charts.rounds_over_time(of(sizes_and_links, "wide-mlp"))
    assert chart is not None
    assert [event.text for event in chart.events] == ["repeat 0", "repeat 1", "repeat 2"]
    n_rounds = {len(line.points) for line in chart.lines}
    assert len(n_rounds) == 1
    assert all(line.tips is not None and len(line.tips) == len(line.points) for line in chart.lines)


def test_scaling_has_a_perfect_line_through_the_reference(sizes_and_links: Report) -> None:
    (scaling,) = sizes_and_links.scaling
    chart = across.scaling(scaling)
    assert chart.x.ticks == (1.0, 2.0, 4.0)
    perfect = next(line for line in chart.lines if line.kind == "perfect")
    single = next(line for line in chart.lines if line.key == "single")
    assert single.points[0] == pytest.approx(perfect.points[0])
    (first, first_rate), (last, last_rate) = perfect.points
    assert last_rate == pytest.approx((first_rate or 0.0) * last / first)
    assert all(len(line.intervals) == len(line.points) for line in chart.lines if line.kind == "measured")


def test_the_crossing_of_two_lines_is_marked_between_their_rates(sizes_and_links: Report) -> None:
    (sensitivity,) = sizes_and_links.link_sensitivity
    chart = across.link_sensitivity(sensitivity)
    assert chart is not None
    (event,) = chart.events
    assert 100.0 < event.x < 1000.0
    # Ratios of 2 and of 1/2: half-way on a logarithmic axis.
    assert event.x == pytest.approx(math.sqrt(100.0 * 1000.0), rel=0.1)


def test_the_example_in_the_docs_is_a_chart(report: Report) -> None:
    page = (Path(__file__).parents[4] / "docs" / "contributing.md").read_text()
    (code,) = [match for match in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "BarChart" in match]
    names = dict(vars(charts))
    exec(compile("from __future__ import annotations\n" + code, "docs", "exec"), names)
    comparison = of(report, "wide-mlp")
    powered = [replace(row, package_j=row.cpu_s or row.tcp_bytes) for row in comparison.rows]
    chart = names["energy"](replace(comparison, rows=tuple(powered)))
    assert isinstance(chart, BarChart)
    assert chart.lanes
    assert legend_of(chart)
