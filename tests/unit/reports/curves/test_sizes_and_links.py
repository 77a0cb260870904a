"""Rates by the number of devices and by the rate of links, from records."""

import html
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_run import DIED, NONE, SINGLE, Case, write_run

from reports.compare import build
from reports.load import load
from reports.pages.data import to_json
from reports.pages.markdown import to_markdown
from reports.pages.page import to_html
from reports.rows.report import LinkSensitivity, Report, Scaling, ScalingLine
from reports.tables.curves import link_table, scaling_table

Build = Callable[..., Report]

ALONE = Case(workload="w", p50_s=0.020, noise=0.001, **SINGLE)


@pytest.fixture
def report_of(tmp_path: Path) -> Build:
    return lambda cases, **options: build([load(write_run(tmp_path / "run", cases, **options))])


def reduce(workers: int, p50_s: float, **fields: object) -> Case:
    usual = {"workload": "w", "strategy": "all-reduce", "noise": 0.001}
    return Case(workers=workers, p50_s=p50_s, **(usual | fields))  # type: ignore[arg-type]


def line(scaling: Scaling, strategy: str) -> ScalingLine:
    (only,) = [line for line in scaling.lines if line.strategy == strategy]
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


def test_a_sweep_names_the_winner_of_each_size(report_of: Build) -> None:
    def ps(workers: int, p50_s: float) -> Case:
        return reduce(workers, p50_s, strategy="ps")

    cases = [reduce(2, 0.014), ps(2, 0.012), reduce(4, 0.006), ps(4, 0.0108)]
    (scaling,) = report_of([ALONE, *cases, reduce(8, 0.003), ps(8, 0.01)]).scaling
    assert scaling.fastest == "fastest: ps with 2 workers, all-reduce with 4 and 8"


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
    outputs = {cells[0].text: cells for cells in table.rows}
    assert outputs["ps"][3].text == "–"
    assert (outputs["all-reduce"][2].text, outputs["all-reduce"][2].note) == ("itself", "on 2 devices")
    assert "50 % (" in outputs["all-reduce"][4].note
    assert "n = 3, " in outputs["all-reduce"][4].note


def test_only_what_differs_in_size_alone_is_one_curve(report_of: Build) -> None:
    cases = [ALONE, reduce(2, 0.01), reduce(4, 0.01, batch_size=128), reduce(4, 0.01, xla=True)]
    assert report_of(cases).scaling == ()


def test_what_has_no_rate_has_no_point_and_marks_go_along(report_of: Build) -> None:
    fromkeys = dict.fromkeys(range(3), ("failed", DIED))
    cases = [
        ALONE,
        replace(ALONE, is_twin=True, params={"aa": True}),
        Case(workload="w", p50_s=0.004, **NONE),
        reduce(2, 0.01),
        reduce(4, 0.01, equivalent=False),
        reduce(8, 0.01, problems=fromkeys),
    ]
    (scaling,) = report_of(cases).scaling
    marks = {line.strategy: line.mark for line in scaling.lines}
    assert marks == {"single": "reference", "none": "control", "all-reduce": "not-equivalent"}
    assert [p.n_devices for p in line(scaling, "all-reduce").points] == [2, 4]


def test_one_size_is_no_curve(report_of: Build) -> None:
    report = report_of([ALONE, reduce(2, 0.01)])
    assert report.scaling == ()
    assert "Scaling" not in to_markdown(report)


def test_it_is_in_markdown_and_json(report_of: Build) -> None:
    report = report_of([ALONE, reduce(2, 0.0125), reduce(4, 0.0080)])
    assert "<summary>Scaling</summary>" in to_markdown(report)
    assert '"reference": "single"' in to_json(report)


ALONE_ON_LINKS = Case(workload="w", p50_s=0.100, noise=0.001, **SINGLE)


def over(mbit: float | None, strategy: str, p50_s: float, *, noise: float = 0.001, **fields: object) -> Case:
    link = () if mbit is None else (mbit, mbit)
    return Case(workload="w", strategy=strategy, p50_s=p50_s, noise=noise, link_mbit=link, **fields)  # type: ignore[arg-type]


def crossing_cases(noise: float = 0.001) -> list[Case]:
    """At 10 Mbit/s topk is twice as fast, at 1,000 Mbit/s half as fast: equal at their geometric mean."""
    return [
        ALONE_ON_LINKS,
        over(10, "topk", 0.02, noise=noise),
        over(10, "all-reduce", 0.04, noise=noise),
        over(1000, "topk", 0.02, noise=noise),
        over(1000, "all-reduce", 0.01, noise=noise),
    ]


def test_rates_by_link_slowest_first(report_of: Build) -> None:
    cases = [over(None, "ps", 0.01), over(1000, "ps", 0.02), over(10, "ps", 0.04), ALONE_ON_LINKS]
    (links,) = report_of(cases).link_sensitivity
    (line,) = [line for line in links.lines if line.strategy == "ps"]
    assert [p.requested_mbit for p in line.points] == [10, 1000, None]
    assert [p.rate.value for p in line.points] == pytest.approx([1600, 3200, 6400], rel=0.01)
    first = line.points[0].measured_mbit
    assert first is not None
    assert (first.value, first.n) == (10, 3)
    assert "link" not in links.shape
    table = link_table(links)
    assert [column.name for column in table.columns][2:] == [
        "10.0 Mbit/s (10.0 measured, n = 3)",
        "1,000 Mbit/s (1,000 measured, n = 3)",
        "no limit",
    ]


def crossings(links: LinkSensitivity) -> list[tuple[str, str]]:
    return [(cross_over.ahead_below, cross_over.ahead_above) for cross_over in links.cross_overs]


def test_where_the_best_changes_is_interpolated_and_said(report_of: Build) -> None:
    report = report_of(crossing_cases())
    (links,) = report.link_sensitivity
    (crossing,) = links.cross_overs
    assert (crossing.ahead_below, crossing.ahead_above, crossing.n) == ("topk", "all-reduce", 3)
    assert crossing.at_mbit == pytest.approx(100, rel=0.03)
    assert crossing.is_shown
    assert crossing.sentence.startswith("Below about ")
    assert crossing.sentence.endswith(
        ", topk overtakes all-reduce (measured at 10.0 Mbit/s and 1,000 Mbit/s, n = 3)"
    )
    assert "topk overtakes all-reduce" in to_markdown(report)


def test_what_repeats_do_not_show_is_said_with_doubt(report_of: Build) -> None:
    (links,) = report_of(crossing_cases(noise=0.6)).link_sensitivity
    (crossing,) = [
        cross_over
        for cross_over in links.cross_overs
        if "single" not in (cross_over.ahead_below, cross_over.ahead_above)
    ]
    assert not crossing.is_shown
    assert " may overtake " in crossing.sentence
    assert ": not significant at " in crossing.sentence


def test_without_a_limit_no_rate_is_made_up(report_of: Build) -> None:
    cases = [over(None, "topk", 0.02), over(None, "ps", 0.01), over(10, "topk", 0.02), over(10, "ps", 0.04)]
    (links,) = report_of([ALONE_ON_LINKS, *cases]).link_sensitivity
    (crossing,) = links.cross_overs
    assert (crossing.at_mbit, crossing.faster_mbit) == (None, None)
    assert crossing.sentence == (
        "Somewhere above 10.0 Mbit/s, ps overtakes topk (measured at 10.0 Mbit/s and no limit, n = 3)"
    )


def test_only_what_touches_the_best_and_may_win_is_told(report_of: Build) -> None:
    best = [over(mbit, "best", 0.005) for mbit in (10, 1000)]
    wrong = [over(10, "wrong", 0.09, equivalent=False), over(1000, "wrong", 0.001, equivalent=False)]
    controls = [Case(workload="w", p50_s=0.004, link_mbit=(m, m), **NONE) for m in (10.0, 1000.0)]
    (links,) = report_of([*crossing_cases(), *best, *wrong, *controls]).link_sensitivity
    assert crossings(links) == []
    assert {line.strategy: line.can_win for line in links.lines}["wrong"] is False
    assert len(links.lines) == 6


UNKNOWN = "Unknown between 10.0 Mbit/s and 1,000 Mbit/s: "


def unchecked(case: Case) -> Case:
    return replace(case, equivalent=None)


def test_nothing_is_said_of_strategies_that_nobody_judged(report_of: Build) -> None:
    report = report_of([unchecked(case) for case in crossing_cases()])
    (links,) = report.link_sensitivity
    assert links.cross_overs == ()
    # The one device alone is what others are held against, and needs no check.
    (sentence,) = links.sentences
    assert sentence == f"{UNKNOWN}only single was measured and checked correct at both; measure another"
    assert sentence in html.unescape(to_html(report))
    assert "No strategy overtakes" not in to_html(report)
    assert "Unknown between 10.0" in to_markdown(report)


def test_the_best_at_one_rate_that_has_no_figure_at_the_next_is_named(report_of: Build) -> None:
    cases = [ALONE_ON_LINKS, over(10, "ps", 0.04), over(1000, "ps", 0.04)]
    (links,) = report_of([*cases, over(10, "topk", 0.02)]).link_sensitivity
    (sentence,) = links.sentences
    assert sentence == (
        f"{UNKNOWN}topk is best at 10.0 Mbit/s, but has no checked result at 1,000 Mbit/s; measure it there"
    )


def test_a_gap_that_is_not_judged_leaves_the_others_as_they_are(report_of: Build) -> None:
    cases = [
        over(mbit, name, p50_s) for mbit in (1, 10, 1000) for name, p50_s in (("ps", 0.04), ("topk", 0.02))
    ]
    cases = [unchecked(case) if case.link_mbit[0] == 1000 else case for case in cases]
    (links,) = report_of([ALONE_ON_LINKS, *cases]).link_sensitivity
    assert [sentence.partition(":")[0] for sentence in links.sentences] == [
        UNKNOWN.partition(":")[0],
        "Between the other link rates no strategy overtakes the best, by means",
    ]


def test_that_the_best_stays_is_certain_only_where_repeats_tell_it_apart(report_of: Build) -> None:
    clear = [over(mbit, name, p50_s) for mbit in (10, 1000) for name, p50_s in (("ps", 0.04), ("topk", 0.02))]
    (links,) = report_of([ALONE_ON_LINKS, *clear]).link_sensitivity
    assert links.sentences == ("No strategy overtakes topk between the measured link rates",)


def test_that_the_best_stays_is_said_by_figures_where_repeats_do_not_show_it(report_of: Build) -> None:
    level = [over(10, "ps", 0.04), over(10, "topk", 0.02)]
    level += [over(1000, "ps", 0.0205, noise=0.1), over(1000, "topk", 0.0195, noise=0.1)]
    (links,) = report_of([ALONE_ON_LINKS, *level]).link_sensitivity
    assert links.cross_overs == ()
    (sentence,) = links.sentences
    assert sentence.startswith("No strategy overtakes topk between the measured link rates, by means")
    assert sentence.endswith(": not significant at 1,000 Mbit/s")


def test_other_batches_are_another_curve(report_of: Build) -> None:
    assert (
        report_of(
            [ALONE_ON_LINKS, over(10, "ps", 0.01), over(1000, "ps", 0.01, batch_size=128)]
        ).link_sensitivity
        == ()
    )
