"""Strategies of which too few repeats count: nobody beats them, and it is said that they lack repeats."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_run import DIED, SINGLE, Case, write_run

from reports.compare import build
from reports.load import load
from reports.rows.report import Comparison

Compare = Callable[..., Comparison]

REDUCE = Case(workload="w", strategy="all-reduce", p50_s=0.010)
PS = Case(workload="w", strategy="ps", p50_s=0.016)
ALONE = Case(workload="w", p50_s=0.020, **SINGLE)
FEW = {1: ("failed", DIED)}


def test_a_rival_of_too_few_repeats_is_together_with_the_leader(compare: Compare) -> None:
    verdict = compare([ALONE, REDUCE, replace(PS, problems=FEW)]).verdict
    assert (verdict.kind, verdict.leaders) == ("together", ("all-reduce", "ps"))
    assert verdict.headline.startswith("NO CLEAR WINNER: all-reduce and ps are tied: all-reduce ")
    assert verdict.headline.endswith("; too few repeats of ps (n = 2), at least 3 are needed")


def test_it_has_no_rank_and_takes_none(compare: Compare) -> None:
    rows = {row.strategy: row for row in compare([ALONE, REDUCE, replace(PS, problems=FEW)]).rows}
    assert [rows[name].rank for name in ("all-reduce", "single", "ps")] == [1, 2, None]


def test_enough_repeats_that_tell_nothing_are_not_called_too_few(compare: Compare) -> None:
    noisy = [replace(REDUCE, noise=0.06), replace(PS, p50_s=0.0101, noise=0.06)]
    verdict = compare([ALONE, *noisy]).verdict
    assert verdict.kind == "together"
    assert "too few" not in verdict.headline


def test_it_may_be_cheapest(compare: Compare) -> None:
    cases = [
        replace(ALONE, price_per_hour=1.0),
        replace(REDUCE, price_per_hour=3.0),
        replace(PS, price_per_hour=3.0, problems=FEW),
    ]
    (cheapest,) = [answer for answer in compare(cases).verdict.answers if answer.goal == "cheapest"]
    assert (cheapest.strategies, cheapest.certain) == (("single", "ps"), False)
    assert re.match(
        r"single and ps are tied for cheapest: single [\d.]+ per million examples .*; "
        r"too few repeats of ps \(n = 2\), at least 3 are needed",
        cheapest.text,
    )


@pytest.mark.parametrize(("problems", "on_front"), [({}, False), (FEW, True)])
def test_it_is_on_the_front_of_speed_and_bytes(
    compare: Compare, problems: dict[int, tuple[str, object]], *, on_front: bool
) -> None:
    trade_off = compare([ALONE, REDUCE, replace(PS, problems=problems)]).curves.trade_off
    assert trade_off is not None
    assert {point.strategy: point.on_front for point in trade_off.points}["ps"] is on_front


def test_that_the_best_stays_over_links_is_certain_of_enough_repeats_only(tmp_path: Path) -> None:
    slow = replace(PS, p50_s=0.03)
    limited = [replace(case, link_mbit=(mbit, mbit)) for mbit in (10.0, 1000.0) for case in (REDUCE, slow)]
    few = [*limited[:-1], replace(limited[-1], problems=FEW)]
    (links,) = build([load(write_run(tmp_path / "run", [ALONE, *few]))]).link_sensitivity
    (sentence,) = links.sentences
    assert sentence.endswith(": not significant at 1,000 Mbit/s")
