"""Link sensitivity: the curve over rates of links, and where strategies change places."""

import html
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_run import NONE, SINGLE, Case, write_run

from reports.compare import build
from reports.load import load
from reports.pages.markdown import to_markdown
from reports.pages.page import to_html
from reports.rows import LinkSensitivity, Report
from reports.tables.curves import link_table

Build = Callable[..., Report]

ALONE = Case(workload="w", p50_s=0.100, noise=0.001, **SINGLE)


@pytest.fixture
def report_of(tmp_path: Path) -> Build:
    return lambda cases, **options: build([load(write_run(tmp_path / "run", cases, **options))])


def over(mbit: float | None, strategy: str, p50_s: float, *, noise: float = 0.001, **fields: object) -> Case:
    link = () if mbit is None else (mbit, mbit)
    return Case(workload="w", strategy=strategy, p50_s=p50_s, noise=noise, link_mbit=link, **fields)  # type: ignore[arg-type]


def crossing_cases(noise: float = 0.001) -> list[Case]:
    """At 10 Mbit/s topk is twice as fast, at 1,000 Mbit/s half as fast: equal at their geometric mean."""
    return [
        ALONE,
        over(10, "topk", 0.02, noise=noise),
        over(10, "all-reduce", 0.04, noise=noise),
        over(1000, "topk", 0.02, noise=noise),
        over(1000, "all-reduce", 0.01, noise=noise),
    ]


def test_rates_by_link_slowest_first(report_of: Build) -> None:
    cases = [over(None, "ps", 0.01), over(1000, "ps", 0.02), over(10, "ps", 0.04), ALONE]
    (links,) = report_of(cases).link_sensitivity
    (line,) = [each for each in links.lines if each.strategy == "ps"]
    assert [p.requested_mbit for p in line.points] == [10, 1000, None]
    assert [p.rate.value for p in line.points] == pytest.approx([1600, 3200, 6400], rel=0.01)
    first = line.points[0].measured_mbit
    assert first is not None
    assert (first.value, first.n) == (10, 3)
    assert "link" not in links.shape
    table = link_table(links)
    assert [column.name for column in table.columns][2:] == [
        "10.0 Mbit/s (10.0 measured, n=3)",
        "1,000 Mbit/s (1,000 measured, n=3)",
        "no limit",
    ]


def crossings(links: LinkSensitivity) -> list[tuple[str, str]]:
    return [(each.ahead_below, each.ahead_above) for each in links.cross_overs]


def test_where_the_best_changes_is_interpolated_and_said(report_of: Build) -> None:
    report = report_of(crossing_cases())
    (links,) = report.link_sensitivity
    (crossing,) = links.cross_overs
    assert (crossing.ahead_below, crossing.ahead_above, crossing.n) == ("topk", "all-reduce", 3)
    assert crossing.at_mbit == pytest.approx(100, rel=0.03)
    assert crossing.is_shown
    assert crossing.sentence.startswith("Below about ")
    assert crossing.sentence.endswith(
        "topk overtakes all-reduce (measured at 10.0 Mbit/s and 1,000 Mbit/s, n=3)."
    )
    assert "topk overtakes all\\-reduce" in to_markdown(report)


def test_what_repeats_do_not_show_is_said_with_doubt(report_of: Build) -> None:
    (links,) = report_of(crossing_cases(noise=0.6)).link_sensitivity
    (crossing,) = [each for each in links.cross_overs if "single" not in (each.ahead_below, each.ahead_above)]
    assert not crossing.is_shown
    assert crossing.sentence.startswith("Perhaps ")
    assert "cannot tell them apart" in crossing.sentence


def test_without_a_limit_no_rate_is_made_up(report_of: Build) -> None:
    cases = [over(None, "topk", 0.02), over(None, "ps", 0.01), over(10, "topk", 0.02), over(10, "ps", 0.04)]
    (links,) = report_of([ALONE, *cases]).link_sensitivity
    (crossing,) = links.cross_overs
    assert (crossing.at_mbit, crossing.faster_mbit) == (None, None)
    assert crossing.sentence == (
        "Somewhere above 10.0 Mbit/s ps overtakes topk (measured at 10.0 Mbit/s and no limit, n=3)."
    )


def test_only_what_touches_the_best_and_may_win_is_told(report_of: Build) -> None:
    best = [over(mbit, "best", 0.005) for mbit in (10, 1000)]
    wrong = [over(10, "wrong", 0.09, equivalent=False), over(1000, "wrong", 0.001, equivalent=False)]
    controls = [Case(workload="w", p50_s=0.004, link_mbit=(m, m), **NONE) for m in (10.0, 1000.0)]
    (links,) = report_of([*crossing_cases(), *best, *wrong, *controls]).link_sensitivity
    assert crossings(links) == []
    assert {each.strategy: each.can_win for each in links.lines}["wrong"] is False
    assert len(links.lines) == 6


UNKNOWN = "Between 10.0 Mbit/s and 1,000 Mbit/s it cannot be said whether the best changes: "


def unchecked(case: Case) -> Case:
    return replace(case, equivalent=None)


def test_nothing_is_said_of_strategies_that_nobody_judged(report_of: Build) -> None:
    report = report_of([unchecked(case) for case in crossing_cases()])
    (links,) = report.link_sensitivity
    assert links.cross_overs == ()
    # The one device alone is what others are held against, and needs no check.
    (sentence,) = links.sentences
    assert (
        sentence
        == f"{UNKNOWN}only single was measured and shown to compute the right thing at both, and it takes 2."
    )
    assert sentence in html.unescape(to_html(report))
    assert "No strategy overtakes" not in to_html(report)
    assert "cannot be said whether the best changes" in to_markdown(report)


def test_the_best_at_one_rate_that_has_no_figure_at_the_next_is_named(report_of: Build) -> None:
    cases = [ALONE, over(10, "ps", 0.04), over(1000, "ps", 0.04)]
    (links,) = report_of([*cases, over(10, "topk", 0.02)]).link_sensitivity
    (sentence,) = links.sentences
    assert sentence.startswith(f"{UNKNOWN}topk, the best at 10.0 Mbit/s, was not measured and shown ")
    assert sentence.endswith(" at 1,000 Mbit/s.")


def test_a_gap_that_is_not_judged_leaves_the_others_as_they_are(report_of: Build) -> None:
    cases = [
        over(mbit, name, p50_s) for mbit in (1, 10, 1000) for name, p50_s in (("ps", 0.04), ("topk", 0.02))
    ]
    cases = [unchecked(case) if case.link_mbit[0] == 1000 else case for case in cases]
    (links,) = report_of([ALONE, *cases]).link_sensitivity
    assert [sentence.partition(":")[0] for sentence in links.sentences] == [
        UNKNOWN.partition(":")[0],
        "Between the other rates no strategy overtakes the best by its figures.",
    ]


def test_that_the_best_stays_is_certain_only_where_repeats_tell_it_apart(report_of: Build) -> None:
    clear = [over(mbit, name, p50_s) for mbit in (10, 1000) for name, p50_s in (("ps", 0.04), ("topk", 0.02))]
    (links,) = report_of([ALONE, *clear]).link_sensitivity
    assert links.sentences == ("No strategy overtakes topk between the rates that were measured.",)


def test_that_the_best_stays_is_said_by_figures_where_repeats_do_not_show_it(report_of: Build) -> None:
    level = [over(10, "ps", 0.04), over(10, "topk", 0.02)]
    level += [over(1000, "ps", 0.0205, noise=0.1), over(1000, "topk", 0.0195, noise=0.1)]
    (links,) = report_of([ALONE, *level]).link_sensitivity
    assert links.cross_overs == ()
    (sentence,) = links.sentences
    assert sentence.startswith("By their figures no strategy overtakes topk between the rates ")
    assert sentence.endswith(", but at 1,000 Mbit/s these repeats cannot tell it from all others.")


def test_other_batches_are_another_curve(report_of: Build) -> None:
    assert (
        report_of([ALONE, over(10, "ps", 0.01), over(1000, "ps", 0.01, batch_size=128)]).link_sensitivity
        == ()
    )
