import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.measure.rounds import balanced_orders, lead_steps, window_steps


@pytest.mark.parametrize("n_cases", [1, 2, 3, 4, 5, 6, 9])
def test_every_case_takes_each_place_and_follows_each_other_equally_often(n_cases: int) -> None:
    orders = list(itertools.islice(balanced_orders(n_cases, "seed"), n_cases * (1 + n_cases % 2)))
    places = Counter((place, case) for order in orders for place, case in enumerate(order))
    assert len(places) == n_cases**2
    assert len(set(places.values())) == 1
    neighbours = Counter(pair for order in orders for pair in itertools.pairwise(order))
    assert len(neighbours) == n_cases * (n_cases - 1)
    assert len(set(neighbours.values())) <= 1


@given(st.integers(1, 12), st.integers(1, 40), st.text(max_size=3))
def test_every_round_has_every_case_once(n_cases: int, n_rounds: int, seed: str) -> None:
    orders = list(itertools.islice(balanced_orders(n_cases, seed), n_rounds))
    assert len(orders) == n_rounds
    assert all(sorted(order) == list(range(n_cases)) for order in orders)
    assert orders == list(itertools.islice(balanced_orders(n_cases, seed), n_rounds))


def test_seeds_give_orders_of_their_own() -> None:
    one, other = (list(itertools.islice(balanced_orders(5, seed), 10)) for seed in ("0/1", "0/2"))
    assert one != other


@pytest.mark.parametrize(
    ("step_s", "least", "period", "expected"),
    [(0.002, 5, 1, 100), (0.1, 5, 1, 5), (0.1, 1, 1, 2), (0.002, 5, 8, 104), (0.0, 3, 1, 3), (0.1, 5, 4, 8)],
)
def test_short_steps_get_more_of_them_and_periods_stay_whole(
    step_s: float, least: int, period: int, expected: int
) -> None:
    assert window_steps(step_s, window_s=0.2, least=least, period=period) == expected


@pytest.mark.parametrize(("period", "expected"), [(1, 2), (2, 2), (3, 3), (8, 8)])
def test_whole_periods_lead_into_a_window(period: int, expected: int) -> None:
    assert lead_steps(period) == expected
