"""What is said of strategies that rank together: why, and how many repeats may decide."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
from open_folders import made_record
from synthetic_run import SINGLE, Case

from harness.records.comparing.common_rounds import PairedRatios
from harness.records.facts.outcome import StepSeconds
from harness.records.facts.rounds import Rounds
from harness.records.record import Record
from reports.contrasts import Contrasts
from reports.recommendation.ties import enough_repeats, tie_sentences, why_together
from reports.rows import Comparison
from reports.statistics import Ratio, adjusted, paired_ratio, sign_flip_p

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
    corrected = adjusted([lead.p_value, *(each.p_value for each in others if each and each.p_value)])[0]
    said = re.fullmatch(
        r"; alone these two would differ \(p=([\d.]+)\), corrected for the 6 pairs of this table p=([\d.]+)",
        why_together("a", "b", contrasts),
    )
    assert said is not None
    assert float(said[1]) == pytest.approx(lead.p_value, rel=0.05)
    assert float(said[2]) == pytest.approx(corrected, rel=0.05)


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
    said = re.fullmatch(
        r"; alone these two would differ \(p=([\d.]+)\), corrected for the 15 pairs of this table p=([\d.]+)",
        why_together("a", "b", contrasts),
    )
    assert said is not None
    assert float(said[1]) == pytest.approx(t_p, rel=0.05)
    assert sign_flip_p(logs) > 1.3 * t_p
    assert float(said[2]) == pytest.approx(corrected, rel=0.05)


@pytest.mark.parametrize("names", [("a", "b"), ("a", "b", "c"), ("a", "d", "b")])
def test_the_corrected_p_stands_beside_the_interval_that_excludes_1(
    compare: Callable[..., Comparison], names: tuple[str, ...]
) -> None:
    (any_row,) = compare([Case(workload="w", strategy="ps")]).rows
    contrasts = table("a", "b", "c", "d")
    sentences = tie_sentences([replace(any_row, strategy=name) for name in names], contrasts)
    why = why_together("a", "b", contrasts)
    (of_b,) = [text for text in sentences if "the rate of b" in text]
    assert why
    assert f"the rate of b{why}" in of_b
    assert sum(why in text for text in sentences) == 1


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
        (0.0095, r"; about \d+ repeats would likely tell them apart, by a rough estimate\."),
        (
            0.01,
            r"; so small a difference would take more than 100 repeats, by a rough estimate\.",
        ),
    ],
)
def test_strategies_that_rank_together_say_how_many_repeats_may_decide(
    compare: Callable[..., Comparison], p50_s: float, words: str
) -> None:
    alone = Case(workload="w", p50_s=0.04, **SINGLE)
    first = Case(workload="w", strategy="all-reduce", p50_s=p50_s, noise=0.05)
    second = Case(workload="w", strategy="ps", p50_s=0.01, noise=0.05)
    advice = compare([alone, first, second]).verdict
    assert "rank together" in advice.headline
    (gap,) = [detail for detail in advice.details if detail.startswith("From the highest figure")]
    assert re.search(words + "$", gap)


def test_a_baseline_that_ties_is_told_of_once(compare: Callable[..., Comparison]) -> None:
    first = Case(workload="w", strategy="all-reduce", p50_s=0.0095, noise=0.05)
    second = Case(workload="w", strategy="ps", p50_s=0.01, noise=0.05)
    advice = compare([first, second], baseline="ps").verdict
    assert "rank together" in advice.headline
    assert sum("runs at" in detail for detail in advice.details) == 1
