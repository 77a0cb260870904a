"""Verdicts: answers for each goal, and why strategies rank together."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from open_folders import made_record
from synthetic_run import SINGLE, Case, write_run

from harness.records.comparison import PairedRatios
from harness.records.outcome import Rounds, StepSeconds
from harness.records.record import Record
from reports.compare import build
from reports.contrasts import Contrasts
from reports.load import load
from reports.recommendation.verdict import enough_repeats, tie_details, why_together
from reports.rows.report import Advice, Answer, Comparison, Goal
from reports.statistics import Ratio, adjusted, paired_ratio, sign_flip_p

Compare = Callable[..., Comparison]

REDUCE = Case(workload="w", strategy="all-reduce", p50_s=0.010, payload=2e6)
PS = Case(workload="w", strategy="ps", p50_s=0.016, payload=1e6)
ALONE = Case(workload="w", p50_s=0.020, **SINGLE)
BEHIND = r"\(CI [\d.]+–[\d.]+, n = 3\)"


def answer(advice: Advice, goal: Goal) -> Answer:
    (only,) = [answer for answer in advice.answers if answer.goal == goal]
    return only


@pytest.fixture
def towards(tmp_path: Path) -> Callable[[list[Case], str], Advice]:
    """The advice of a small run whose experiment asks for a goal."""

    def make(cases: list[Case], goal: str) -> Advice:
        run = load(write_run(tmp_path / "run", cases))
        experiment = dict(run.experiment) | {"compare": {"baseline": "single", "goal": goal}}
        (comparison,) = build([replace(run, stored=replace(run.stored, experiment=experiment))]).comparisons
        return comparison.verdict

    return make


def test_the_winner_is_set_against_the_baseline_and_the_next(compare: Compare) -> None:
    advice = compare([ALONE, REDUCE, PS]).verdict
    assert re.fullmatch(
        rf"WINNER: all-reduce, [\d.]+× single {BEHIND}, [\d.]+× the next, ps {BEHIND}", advice.headline
    )
    assert f"{advice.label}: {advice.claim}" == advice.headline


def test_one_device_as_the_next_sends_nothing_worth_a_word(compare: Compare) -> None:
    advice = compare([ALONE, REDUCE]).verdict
    assert re.fullmatch(rf"WINNER: all-reduce, [\d.]+× single {BEHIND}", advice.headline)


def test_a_baseline_of_several_devices_that_wins_is_set_against_the_next_too(compare: Compare) -> None:
    advice = compare([REDUCE, PS], baseline="all-reduce").verdict
    assert re.fullmatch(rf"WINNER: all-reduce, [\d.]+× the next, ps {BEHIND}", advice.headline)


def test_each_goal_is_answered_with_its_certainty(compare: Compare) -> None:
    cases = [
        replace(ALONE, price_per_hour=1.0),
        replace(REDUCE, price_per_hour=2.6),
        replace(PS, price_per_hour=2.6),
    ]
    advice = compare(cases).verdict
    assert [answer.goal for answer in advice.answers] == ["fastest", "cheapest", "network"]
    assert all(answer.certain for answer in advice.answers)
    assert answer(advice, "fastest").strategies == ("all-reduce",)
    assert answer(advice, "cheapest").strategies == ("single",)
    # One device alone sends nothing, and is no choice of what to send.
    least = answer(advice, "network")
    assert least.strategies == ("ps",)
    assert re.fullmatch(
        r"ps sends least of those that communicate: 1\.01 MB per step over TCP \(n = 3, all 1\.01 MB\), "
        rf"[\d.]+× all-reduce {BEHIND}",
        least.text,
    )
    assert advice.details[-2:] == (answer(advice, "cheapest").text, least.text)


def test_what_cannot_be_told_apart_is_no_certain_answer(compare: Compare) -> None:
    same = replace(REDUCE, strategy="ps", p50_s=0.0101, noise=0.06)
    cases = [ALONE, replace(REDUCE, noise=0.06), same]
    advice = compare([replace(case, price_per_hour=1.0) for case in cases]).verdict
    assert [answer.certain for answer in advice.answers] == [False, False, False]
    assert {frozenset(answer.strategies) for answer in advice.answers} == {frozenset({"all-reduce", "ps"})}
    assert " are tied for least traffic: " in answer(advice, "network").text


def test_one_repeat_is_no_certain_answer(compare: Compare) -> None:
    advice = compare([ALONE, REDUCE, PS], n_repeats=1).verdict
    assert not answer(advice, "network").certain
    fastest = answer(advice, "fastest")
    assert fastest.text == f"Fastest: {advice.claim}"
    assert re.fullmatch(
        r"NOT ENOUGH REPEATS: all-reduce leads, [\d.]+× single \(no CI, n = 1\); "
        r"at least 3 repeats are needed: rerun with --repeats 3",
        advice.headline,
    )
    assert not fastest.certain


def test_what_sends_least_and_is_fastest_is_said_once(compare: Compare) -> None:
    comparison = compare([ALONE, replace(REDUCE, payload=5e5), PS])
    assert answer(comparison.verdict, "network").text.startswith(
        "all-reduce sends least of those that communicate: "
    )
    assert not any("sends least" in detail for detail in comparison.verdict.details)


def test_what_may_not_win_answers_nothing(compare: Compare) -> None:
    wrong = replace(PS, payload=10.0, price_per_hour=0.1, equivalent=False)
    advice = compare([ALONE, REDUCE, wrong]).verdict
    assert [answer.goal for answer in advice.answers] == ["fastest"]


def test_the_goal_chooses_the_headline(towards: Callable[[list[Case], str], Advice]) -> None:
    advice = towards([ALONE, REDUCE, PS], "network")
    assert advice.headline.startswith("WINNER: ps sends least of those that communicate: ")
    assert (advice.goal, advice.kind, advice.leaders) == ("network", "clear", ("ps",))
    assert advice.details[0].startswith("Fastest: all-reduce, ")
    assert advice.claim not in advice.details


def test_a_goal_that_cannot_be_answered_says_what_is_missing(
    towards: Callable[[list[Case], str], Advice],
) -> None:
    advice = towards([ALONE, REDUCE, PS], "cheapest")
    assert advice.headline.startswith("WINNER: all-reduce")
    assert advice.goal == "fastest"
    assert "set cluster.price_per_hour" in advice.details[0]


def alike(n: int, *, price: float = 1.0) -> list[Case]:
    """Strategies so little apart that few repeats may or may not show it."""
    first = replace(ALONE, p50_s=0.0100, noise=0.03, price_per_hour=price)
    others = [
        replace(
            REDUCE, strategy=f"s{i}", p50_s=0.0094 if i == 0 else 0.0100, noise=0.03, price_per_hour=price
        )
        for i in range(n)
    ]
    return [first, *others]


@pytest.mark.parametrize("n_repeats", [1, 2, 3, 4, 5, 6, 8])
def test_at_equal_prices_the_cheapest_are_the_fastest(compare: Compare, n_repeats: int) -> None:
    advice = compare(alike(5, price=0.7), n_repeats=n_repeats).verdict
    fastest, cheapest = answer(advice, "fastest"), answer(advice, "cheapest")
    assert (cheapest.strategies, cheapest.certain) == (fastest.strategies, fastest.certain)


@pytest.mark.parametrize(
    ("n_repeats", "words"),
    [
        (3, r"single is cheapest: [\d.]+ per million examples \(n = 3, [\d.]+–[\d.]+\)"),
        (
            1,
            r"single is cheapest by its mean: [\d.]+ per million examples \(n = 1\), no CI",
        ),
    ],
)
def test_a_price_is_shown_with_its_n_and_range(compare: Compare, n_repeats: int, words: str) -> None:
    cases = [replace(ALONE, price_per_hour=1.0), replace(REDUCE, price_per_hour=9.0)]
    advice = compare(cases, n_repeats=n_repeats).verdict
    assert re.fullmatch(words, answer(advice, "cheapest").text)


def test_what_costs_as_much_as_it_is_faster_is_not_cheaper(compare: Compare) -> None:
    cases = [replace(ALONE, price_per_hour=1.0), replace(REDUCE, price_per_hour=2.0)]
    advice = compare(cases, n_repeats=6).verdict
    assert answer(advice, "fastest").certain
    cheapest = answer(advice, "cheapest")
    assert (set(cheapest.strategies), cheapest.certain) == ({"single", "all-reduce"}, False)


@pytest.mark.parametrize(
    ("bounded", "strategies", "certain"),
    [
        ("ps", ("all-reduce", "ps"), False),
        ("all-reduce", ("all-reduce",), True),
        (None, ("all-reduce",), True),
    ],
)
def test_at_most_so_many_bytes_are_not_more_than_fewer(
    tmp_path: Path, bounded: str | None, strategies: tuple[str, ...], certain: bool
) -> None:
    cases = [
        ALONE,
        replace(REDUCE, payload=1.0e6, payload_is_bound=bounded == "all-reduce"),
        replace(PS, payload=1.2e6, payload_is_bound=bounded == "ps"),
    ]
    run = load(write_run(tmp_path / "run", cases, n_repeats=1))
    records = tuple(replace(record, tcp_bytes_per_step=None) for record in run.records)
    (comparison,) = build([replace(run, stored=replace(run.stored, records=records))]).comparisons
    least = answer(comparison.verdict, "network")
    assert (least.strategies, least.certain) == (strategies, certain)
    assert ("; only an upper bound is known of ps" in least.text) is (bounded == "ps")
    bound = "all-reduce sends least of those that communicate: at most 1.00 MB per step"
    assert (bound in least.text) is (bounded == "all-reduce")


@pytest.mark.parametrize(("n_repeats", "certain"), [(1, False), (2, False), (3, True)])
def test_bytes_are_told_apart_from_three_repeats_on(
    compare: Compare, n_repeats: int, *, certain: bool
) -> None:
    least = answer(compare([ALONE, REDUCE, PS], n_repeats=n_repeats).verdict, "network")
    assert least.certain is certain
    assert ("; at least 3 repeats of each are needed" in least.text) is not certain


def test_a_card_says_the_fastest_once(towards: Callable[[list[Case], str], Advice]) -> None:
    advice = towards([ALONE, REDUCE, PS], "network")
    fastest = answer(advice, "fastest")
    assert [advice.headline, *advice.details].count(fastest.text) == 1


@pytest.mark.parametrize(
    ("p50_s", "noise", "n_repeats", "words"),
    [
        (0.0050, 0.01, 3, "Faster, not ranked: wrong (not"),
        (0.0099, 0.05, 3, "No significant difference, not ranked: wrong (not"),
        (0.0050, 0.01, 1, "Faster (no CI), not ranked: wrong (not"),
        (0.0150, 0.01, 3, None),
    ],
)
def test_what_cannot_win_is_faster_only_where_repeats_show_it(
    compare: Compare, p50_s: float, noise: float, n_repeats: int, words: str | None
) -> None:
    wrong = replace(REDUCE, strategy="wrong", p50_s=p50_s, noise=noise, equivalent=False)
    advice = compare([ALONE, replace(REDUCE, noise=noise), wrong], n_repeats=n_repeats).verdict
    details = [detail for detail in advice.details if "not ranked" in detail]
    assert [detail.partition(" equivalent")[0] for detail in details] == ([] if words is None else [words])


N_ROUNDS = 10
# Logarithms of four strategies' step times: `a` and `b` differ by themselves, but not as one pair of six.
STEPS = {
    "a": (0.0, 0.0, 0.0),
    "b": (0.30, 0.42, 0.25),
    "c": (0.9, -0.2, 0.3),
    "d": (0.1, 1.1, -0.4),
}


def records(strategy: str, logs: Sequence[float]) -> list[Record]:
    return [
        replace(
            made_record(),
            case=strategy,
            strategy=strategy,
            repeat=repeat,
            batch_size=64,
            step_s=StepSeconds(n=50, p50=0.01 * math.exp(log)),
            rounds=Rounds(
                block=f"b{repeat}",
                n_steps=5,
                n_lead=2,
                n_made=70,
                step_s=(0.01 * math.exp(log),) * N_ROUNDS,
            ),
        )
        for repeat, log in enumerate(logs)
    ]


def table(*names: str) -> Contrasts:
    return Contrasts({name: records(name, STEPS[name]) for name in names})


def ratio_of(differences: Sequence[float]) -> Ratio:
    return paired_ratio(PairedRatios(logs=tuple(differences)))


def test_a_tie_whose_interval_excludes_1_names_its_p_and_the_corrected_one() -> None:
    contrasts = table("a", "b", "c", "d")
    lead = contrasts.of("a", "b")
    assert lead is not None
    assert lead.interval is not None
    assert lead.p_value is not None
    assert lead.interval.low > 1.0
    assert not contrasts.ahead("a", "b")
    others = [contrasts.of(*pair) for pair in ("ac", "ad", "bc", "bd", "cd")]
    corrected = adjusted([lead.p_value, *(other.p_value for other in others if other and other.p_value)])[0]
    match = re.fullmatch(
        r"No significant difference between a and b: p = ([\d.]+), ([\d.]+) corrected for 6 pairs",
        why_together("a", "b", contrasts),
    )
    assert match is not None
    assert float(match[1]) == pytest.approx(lead.p_value, rel=0.05)
    assert float(match[2]) == pytest.approx(corrected, rel=0.05)


def test_a_tie_has_no_corrected_p_where_nothing_contradicts_it() -> None:
    assert why_together("a", "c", table("a", "b", "c", "d")) == ""
    # Of one pair nothing is corrected, and `a` is ahead.
    assert why_together("a", "b", table("a", "b")) == ""


def test_the_p_that_is_named_is_the_one_that_was_used() -> None:
    logs = (0.3, 0.42, 0.25, 0.05, 0.5, 0.1, 0.2, -0.15)
    wild = np.random.default_rng(3).normal(0.0, 1.0, size=(4, len(logs))).tolist()
    steps = {"a": (0.0,) * len(logs), "b": logs, **dict(zip("cdef", wild, strict=True))}
    contrasts = Contrasts({name: records(name, values) for name, values in steps.items()})
    t_p, corrected = scipy.stats.ttest_1samp(logs, 0.0).pvalue, contrasts.p_of("a", "b")
    assert corrected is not None
    match = re.fullmatch(
        r"No significant difference between a and b: p = ([\d.]+), ([\d.]+) corrected for 15 pairs",
        why_together("a", "b", contrasts),
    )
    assert match is not None
    assert float(match[1]) == pytest.approx(t_p, rel=0.05)
    assert sign_flip_p(logs) > 1.3 * t_p
    assert float(match[2]) == pytest.approx(corrected, rel=0.05)


@pytest.mark.parametrize("names", [("a", "b"), ("a", "b", "c"), ("a", "d", "b")])
def test_the_corrected_p_stands_beside_the_interval_that_excludes_1(
    compare: Callable[..., Comparison], names: tuple[str, ...]
) -> None:
    (any_row,) = compare([Case(workload="w", strategy="ps")]).rows
    contrasts = table("a", "b", "c", "d")
    sentences = tie_details([replace(any_row, strategy=name) for name in names], contrasts)
    why = why_together("a", "b", contrasts)
    (of_b,) = [number for number, text in enumerate(sentences) if "× b (" in text]
    assert why
    assert sentences[of_b + 1] == why
    assert sentences.count(why) == 1


def test_enough_repeats_tell_a_difference_as_large_four_times_in_five() -> None:
    seen = ratio_of((0.02, 0.10, -0.02, 0.07))
    n = enough_repeats(seen)
    assert n is not None
    assert n > seen.n
    spread = float(np.std((0.02, 0.10, -0.02, 0.07), ddof=1))
    rng = np.random.default_rng(0)

    def share(repeats: int) -> float:
        draws = rng.normal(math.log(seen.value), spread, size=(4000, repeats))
        return float(np.mean(scipy.stats.ttest_1samp(draws, 0.0, axis=1).pvalue < 0.05))

    assert share(n) >= 0.77
    assert share(n - 2) < 0.8


def test_more_tests_need_more_repeats_and_no_difference_is_never_told() -> None:
    seen = ratio_of((0.02, 0.10, -0.02, 0.07))
    alone, of_six = enough_repeats(seen), enough_repeats(seen, n_tests=6)
    assert alone is not None
    assert of_six is not None
    assert of_six > alone
    assert enough_repeats(ratio_of((0.1, -0.1, 0.05, -0.05))) is None
    assert enough_repeats(ratio_of((0.1, 0.2))) is None


def test_how_wide_an_interval_is_said_to_be_asks_for_no_more_repeats() -> None:
    pairs = PairedRatios(logs=(0.02, 0.10, -0.02, 0.07))
    assert enough_repeats(paired_ratio(pairs, confidence=0.97)) == enough_repeats(paired_ratio(pairs))


def test_what_repeats_differ_by_on_other_cores_is_no_spread_to_be_waited_for() -> None:
    logs, cores = (0.02, 0.10, -0.02, 0.07), ((0, 0), (1, 0), (0, 0), (1, 0))
    on_cores = enough_repeats(paired_ratio(PairedRatios(logs=logs, cores=cores)))
    alone = enough_repeats(paired_ratio(PairedRatios(logs=logs)))
    assert on_cores is not None
    assert alone is not None
    assert on_cores < alone


@pytest.mark.parametrize(
    ("p50_s", "words"),
    [
        (0.0095, r"about (\d+) repeats would decide: rerun with --repeats \1"),
        (0.01, r"more than 100 repeats would be needed to decide"),
    ],
)
def test_strategies_that_rank_together_say_how_many_repeats_may_decide(
    compare: Callable[..., Comparison], p50_s: float, words: str
) -> None:
    alone = Case(workload="w", p50_s=0.04, **SINGLE)
    first = Case(workload="w", strategy="all-reduce", p50_s=p50_s, noise=0.05)
    second = Case(workload="w", strategy="ps", p50_s=0.01, noise=0.05)
    advice = compare([alone, first, second]).verdict
    tied = r"NO CLEAR WINNER: .* and .* are tied: (?:all-reduce|ps) [\d.]+× single \(.*\); "
    assert re.fullmatch(tied + words, advice.headline)
    assert re.fullmatch(rf"(all-reduce|ps) [\d.]+× (all-reduce|ps) {BEHIND}", advice.details[0])


def test_a_baseline_that_ties_is_told_of_once(compare: Callable[..., Comparison]) -> None:
    first = Case(workload="w", strategy="all-reduce", p50_s=0.0095, noise=0.05)
    second = Case(workload="w", strategy="ps", p50_s=0.01, noise=0.05)
    advice = compare([first, second], baseline="ps").verdict
    assert re.fullmatch(rf"all-reduce and ps are tied: [\d.]+× {BEHIND}; .*", advice.claim)
    assert not any("× ps" in detail for detail in advice.details)
