"""Significant differences between strategies, from repeats timed in turn or alone."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from open_folders import made_record

from harness.records.outcome import Rounds, StepSeconds
from harness.records.record import Record
from reports.contrasts import Contrasts
from reports.statistics import ratio

N_ROUNDS = 10


def records(
    strategy: str, rounds_s: Sequence[Sequence[float]], *, block: str = "b", batch_size: int = 64
) -> list[Record]:
    return [
        replace(
            made_record(),
            case=strategy,
            strategy=strategy,
            repeat=repeat,
            batch_size=batch_size,
            step_s=StepSeconds(n=50, p50=float(np.median(step_s))),
            rounds=Rounds(block=f"{block}{repeat}", n_steps=5, n_lead=2, n_made=70, step_s=tuple(step_s)),
        )
        for repeat, step_s in enumerate(rounds_s)
    ]


def noisy(factor: float, *, seed: int, repeats: int = 4) -> list[list[float]]:
    """Steps in minutes that are up to three times as slow as others, the same for all cases."""
    minutes = np.exp(np.random.default_rng(0).uniform(0, 1.1, size=(repeats, N_ROUNDS)))
    own = np.exp(np.random.default_rng(seed).normal(0, 0.02, size=(repeats, N_ROUNDS)))
    return (0.01 * factor * minutes * own).tolist()


def test_a_slow_minute_falls_on_both_cases_of_a_round() -> None:
    contrasts = Contrasts({"a": records("a", noisy(1.0, seed=1)), "b": records("b", noisy(1.1, seed=2))})
    lead = contrasts.of("a", "b")
    assert lead is not None
    assert lead.is_paired
    assert lead.value == pytest.approx(1.1, rel=0.03)
    assert lead.interval is not None
    assert lead.interval.high / lead.interval.low < 1.1
    assert contrasts.ahead("a", "b")
    assert not contrasts.ahead("b", "a")
    assert contrasts.p_of("a", "b") == contrasts.p_of("b", "a")


def test_repeats_without_rounds_in_common_are_compared_as_they_are() -> None:
    usable = {
        "a": records("a", noisy(1.0, seed=1), block="one"),
        "b": records("b", noisy(1.1, seed=2), block="other"),
    }
    lead = Contrasts(usable).of("a", "b")
    assert lead is not None
    assert not lead.is_paired
    assert not Contrasts(usable).ahead("a", "b")


def test_cases_of_different_blocks_meet_in_the_baseline_beside_them() -> None:
    base = [[0.02] * N_ROUNDS] * 4
    slow = [[0.04] * N_ROUNDS] * 4

    def beside(records: Sequence[Record], baseline_s: Sequence[Sequence[float]]) -> list[Record]:
        results = []
        for record, steps in zip(records, baseline_s, strict=True):
            assert record.rounds is not None
            rounds = replace(record.rounds, baseline="single", baseline_step_s=tuple(steps))
            results.append(replace(record, rounds=rounds))
        return results

    usable = {
        "single": records("single", base, block="x"),
        "a": beside(records("a", [[0.01] * N_ROUNDS] * 4, block="x"), base),
        # All of this block was in slow minutes.
        "b": beside(records("b", [[0.08] * N_ROUNDS] * 4, block="y"), slow),
    }
    contrasts = Contrasts(usable)
    for first, second, expected in (
        ("a", "single", 2.0),
        ("b", "single", 0.5),
        ("single", "b", 2.0),
        ("a", "b", 4.0),
    ):
        lead = contrasts.of(first, second)
        assert lead is not None
        assert lead.is_paired
        assert lead.value == pytest.approx(expected)


def test_a_ratio_is_of_examples_and_not_of_steps() -> None:
    steps = [[0.01] * N_ROUNDS] * 3
    lead = Contrasts({"a": records("a", steps, batch_size=128), "b": records("b", steps)}).of("a", "b")
    assert lead is not None
    assert lead.value == pytest.approx(2.0)


def test_rounds_after_a_case_has_failed_count_for_nobody() -> None:
    failed = records("a", [[0.01] * 5] * 3)
    lead = Contrasts({"a": failed, "b": records("b", [[0.01] * 5 + [0.08] * 5] * 3)}).of("b", "a")
    assert lead is not None
    assert lead.value == pytest.approx(1.0)


def test_many_tests_of_one_table_need_more_than_one_of_them_alone() -> None:
    two = {name: records(name, noisy(1.0 + 0.012 * k, seed=40 + k)) for k, name in enumerate("ab")}
    alone = Contrasts(two).p_of("a", "b")
    many = Contrasts(
        {**two, **{name: records(name, noisy(1.0, seed=60 + k)) for k, name in enumerate("cdef")}}
    )
    among = many.p_of("a", "b")
    assert alone is not None
    assert among is not None
    assert among > alone


def among_noisy(repeats: int) -> dict[str, list[Record]]:
    """Two strategies a third apart, and four of which no repeats say anything."""
    apart = {
        name: records(name, noisy(factor, seed=k, repeats=repeats))
        for k, (name, factor) in enumerate((("a", 1.0), ("b", 1.3)))
    }
    draws = np.random.default_rng(5).normal(0.0, 1.0, size=(4, repeats))
    for name, logs in zip("cdef", draws, strict=True):
        apart[name] = records(name, [[0.01 * float(np.exp(log))] * N_ROUNDS for log in logs])
    return apart


def test_so_many_pairs_that_signs_could_show_nothing_are_tested_by_t() -> None:
    usable = among_noisy(repeats=8)
    alone, many = Contrasts({name: usable[name] for name in "ab"}), Contrasts(usable)
    by_signs, by_t = alone.of("a", "b"), many.of("a", "b")
    assert by_signs is not None
    assert by_t is not None
    assert by_signs.p_value == by_signs.least_p == 2 / 256
    assert many.n_tests == 15
    assert by_t.p_value == by_signs.t_p
    assert many.of("b", "a") == by_t.inverse()
    assert many.ahead("a", "b")


def test_repeats_that_signs_can_show_something_of_keep_their_test() -> None:
    lead = Contrasts(among_noisy(repeats=10)).of("a", "b")
    assert lead is not None
    assert lead.p_value == lead.least_p == 2 / 1024


def test_unpaired_repeats_too_few_for_labels_are_corrected_too() -> None:
    """Alone these two differ; as one pair of fifteen they do not."""
    steps_s = {
        "a": (0.0100, 0.0101, 0.0102),
        "b": (0.0104, 0.0103, 0.0105),
        "c": (0.01, 0.03, 0.02),
        "d": (0.02, 0.01, 0.05),
        "e": (0.05, 0.02, 0.01),
        "f": (0.03, 0.05, 0.02),
    }
    usable = {
        name: records(name, [[s] * N_ROUNDS for s in step_times], block=name)
        for name, step_times in steps_s.items()
    }
    alone, many = Contrasts({name: usable[name] for name in "ab"}), Contrasts(usable)
    lead = many.of("a", "b")
    assert lead is not None
    assert not lead.is_paired
    assert many.n_tests == 15
    assert alone.p_of("a", "b") == lead.p_value
    assert alone.ahead("a", "b")
    assert not many.ahead("a", "b")


def test_nothing_is_said_of_a_strategy_without_figures() -> None:
    contrasts = Contrasts({"a": records("a", noisy(1.0, seed=1)), "b": []})
    assert contrasts.of("a", "b") is None
    assert contrasts.p_of("a", "b") is None
    assert not contrasts.ahead("a", "b")


@given(
    st.lists(st.floats(0.1, 10.0), min_size=3, max_size=7),
    st.lists(st.floats(0.1, 10.0), min_size=3, max_size=7),
)
def test_a_ratio_turned_around_is_that_of_the_other_to_the_one(
    first: list[float], second: list[float]
) -> None:
    turned, direct = ratio(first, second).inverse(), ratio(second, first)
    assert turned.value == pytest.approx(direct.value)
    assert (turned.n, turned.n_baseline) == (direct.n, direct.n_baseline)
    assert turned.p_value == pytest.approx(direct.p_value, abs=0.02)
    assert turned.interval is not None
    assert direct.interval is not None
    assert turned.interval.low == pytest.approx(direct.interval.low)
    assert turned.interval.high == pytest.approx(direct.interval.high)


@pytest.mark.parametrize("block", ["b", "other"])
def test_prices_shift_ratios_and_what_they_are_tested_against(block: str) -> None:
    usable = {
        "a": records("a", noisy(1.0, seed=1, repeats=8)),
        "b": records("b", noisy(2.0, seed=2, repeats=8), block=block),
    }
    plain, priced = Contrasts(usable), Contrasts(usable).per_price({"a": 3.0, "b": 1.0})
    lead, cost_lead = plain.of("a", "b"), priced.of("a", "b")
    assert lead is not None
    assert cost_lead is not None
    assert cost_lead.value == pytest.approx(lead.value / 3.0)
    assert lead.interval is not None
    assert cost_lead.interval is not None
    assert cost_lead.interval.low == pytest.approx(lead.interval.low / 3.0)
    even = Contrasts(usable).per_price({"a": lead.value, "b": 1.0})
    assert even.p_of("a", "b") == pytest.approx(1.0, abs=0.2)
    assert not even.ahead("a", "b")
    assert not even.ahead("b", "a")


def test_without_a_price_there_is_nothing_to_compare() -> None:
    usable = {"a": records("a", noisy(1.0, seed=1)), "b": records("b", noisy(2.0, seed=2))}
    assert Contrasts(usable).per_price({"a": 1.0}).of("a", "b") is None
