""" """

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.measure.windows import (
    CHUNK_STEPS,
    Window,
    balanced_orders,
    input_wait,
    is_settled,
    lead_steps,
    step_seconds,
    steps_of_workers,
    timed_unit,
    transient_steps,
    window_steps,
)
from harness.records.costs import InputWait
from harness.worker.jobs.training import TimedSteps
from harness.worker.session.timed_loop import StepTimes, run_steps
from strategies.plan.execution import Execution


def noisy(n_steps: int, level: float = 0.05, seed: int = 0) -> np.ndarray:
    return level * (1 + 0.02 * np.random.default_rng(seed).standard_normal(n_steps))


class TestTransientSteps:
    @pytest.mark.parametrize("n_slow", [1, 3, 7])
    def test_finds_slow_first_steps(self, n_slow: int) -> None:
        results = []
        for seed in range(20):
            times = noisy(40, seed=seed)
            times[:n_slow] += 0.5
            results.append(transient_steps(times))
        assert min(results) >= n_slow
        assert np.median(results) <= n_slow + 3

    def test_finds_little_in_a_steady_series(self) -> None:
        steps = [transient_steps(noisy(60, seed=seed)) for seed in range(20)]
        assert np.median(steps) <= 3

    def test_one_late_interruption_is_no_end_of_warm_up(self) -> None:
        times = noisy(60)
        expected = transient_steps(times)
        times[24] = 3.0
        assert transient_steps(times) == expected

    def test_equal_times_have_no_transient(self) -> None:
        assert transient_steps(np.full(30, 0.05)) == 0

    @given(st.lists(st.floats(1e-6, 1e3), max_size=60))
    def test_is_at_most_half_and_does_not_depend_on_the_unit(self, values: list[float]) -> None:
        times = np.asarray(values)
        assert 0 <= transient_steps(times) <= len(values) // 2
        assert transient_steps(times) == transient_steps(times * 1024.0)

    def test_leaves_its_input_alone(self) -> None:
        times = noisy(30)
        before = times.copy()
        transient_steps(times)
        assert np.array_equal(times, before)


class TestIsSettled:
    def test_needs_a_chunk(self) -> None:
        assert not is_settled(np.full(CHUNK_STEPS - 1, 0.05))
        assert is_settled(np.full(CHUNK_STEPS, 0.05))

    def test_a_falling_series_is_not_settled(self) -> None:
        assert not is_settled(np.linspace(1.0, 0.1, 40))


@given(st.integers(1, 30), st.integers(0, 1000))
def test_percentiles_of_steps_are_in_order(n_steps: int, seed: int) -> None:
    step_s = step_seconds(np.random.default_rng(seed).exponential(size=n_steps), n_steps=n_steps)
    assert step_s.n == n_steps
    assert step_s.p50 is not None
    assert step_s.p90 is not None
    assert step_s.p99 is not None
    assert step_s.p50 <= step_s.p90 <= step_s.p99


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


@pytest.mark.parametrize(
    ("execution", "expected"),
    [
        (Execution(), "step"),
        (Execution(period=8), "period"),
        (Execution(steps_per_loop=4), "step"),
        (Execution(sync=False), "window"),
        (Execution(staleness=2), "window"),
        (Execution(backup=1), "window"),
    ],
)
def test_steps_are_timed_alone_only_where_workers_wait_in_each(execution: Execution, expected: str) -> None:
    assert timed_unit(execution) == expected


@pytest.mark.parametrize(("period", "expected"), [(1, 2), (2, 2), (3, 3), (8, 8)])
def test_whole_periods_lead_into_a_window(period: int, expected: int) -> None:
    assert lead_steps(period) == expected


def window(*waits_s: list[float] | None, step_s: float = 1.0, n_lead: int = 0) -> Window:
    """One window whose workers wait so long in each step."""
    n_steps = next(len(waits) for waits in waits_s if waits is not None) if any(waits_s) else 2
    start_s = np.arange(n_steps) * step_s
    rows = tuple(
        TimedSteps(
            times=StepTimes(
                start_s=start_s,
                end_s=start_s + step_s,
                losses=np.zeros((n_steps, 1)),
                input_s=None if waits is None else np.asarray(waits),
            ),
            weights=(1.0,),
        )
        for waits in waits_s
    )
    return Window(number=0, n_lead=n_lead, rows=rows)


def test_a_wait_for_a_slower_worker_counts_once_in_a_period() -> None:
    """Each worker loses 0.2 s in another step, and waits as long for the other one in the last step."""
    each_s = ([9.0, 9.0, 0.3, 0.1, 0.3], [9.0, 9.0, 0.1, 0.3, 0.3])
    rows = tuple(
        TimedSteps(
            times=StepTimes(
                start_s=np.cumsum([0.0, *taken_s[:-1]]), end_s=np.cumsum(taken_s), losses=np.zeros((5, 1))
            ),
            weights=(1.0,),
        )
        for taken_s in each_s
    )
    steps = Window(number=0, n_lead=2, rows=rows)
    assert steps.counted_s(3) == pytest.approx([0.7 / 3])
    assert steps.counted_s(1) == pytest.approx([0.3, 0.3, 0.3])
    assert steps.counted_s(None) == pytest.approx([0.7 / 3])


def test_the_worker_that_waits_longest_counts_and_steps_that_lead_in_do_not() -> None:
    wait = input_wait([window([0.9, 0.1, 0.0], [0.9, 0.0, 0.3], n_lead=1)], 1.0)
    assert wait == InputWait(
        mean=pytest.approx(0.2),
        share=pytest.approx(0.2),
        mean_of_workers=(pytest.approx(0.05), pytest.approx(0.15)),
        bound=True,
    )


@pytest.mark.parametrize(("wait_s", "bound"), [(0.09, False), (0.11, True)])
def test_a_tenth_of_the_steps_binds(wait_s: float, bound: bool) -> None:
    wait = input_wait([window([wait_s, wait_s])], 1.0)
    assert wait is not None
    assert wait.bound is bound


def test_waits_of_workers_that_do_not_wait_for_each_other_are_no_longer_than_their_steps() -> None:
    """Each worker waits in another step; each has 0.55 s per step."""
    wait = input_wait([window([0.9, 0.0], [0.0, 0.9])], 0.55, unit=None)
    assert wait is not None
    assert (wait.mean, wait.share) == (pytest.approx(0.45), pytest.approx(0.45 / 0.55))


def test_staged_batches_have_no_wait() -> None:
    assert input_wait([window(None, None)], 1.0) is None
    assert steps_of_workers([window(None)]).input_s is None


def test_every_wait_is_kept() -> None:
    steps = steps_of_workers([window([0.1, 0.2], [0.3, 0.4]), window([0.5], [0.6])])
    assert steps.input_s is not None
    assert steps.input_s.tolist() == [0.1, 0.2, 0.5, 0.3, 0.4, 0.6]


def test_the_loop_takes_a_batch_within_each_step_and_none_beyond(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 10.5, 12.0, 12.25, 15.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    batches = iter([[np.array(k)] for k in range(3)])
    times = run_steps(lambda batch: [batch[0]], batches, n_steps=2, n_losses=1, made_meanwhile=True)
    assert times.input_s is not None
    assert times.input_s.tolist() == [0.5, 0.25]
    assert (times.end_s - times.start_s).tolist() == [2.0, 3.0]
    assert times.losses.ravel().tolist() == [0.0, 1.0]
    assert [int(part) for (part,) in batches] == [2]
