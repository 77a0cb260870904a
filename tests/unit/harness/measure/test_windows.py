import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.measure.windows import CHUNK_STEPS, is_settled, step_seconds, transient_steps


def noisy(n_steps: int, level: float = 0.05, seed: int = 0) -> np.ndarray:
    return level * (1 + 0.02 * np.random.default_rng(seed).standard_normal(n_steps))


class TestTransientSteps:
    @pytest.mark.parametrize("n_slow", [1, 3, 7])
    def test_finds_slow_first_steps(self, n_slow: int) -> None:
        found = []
        for seed in range(20):
            times = noisy(40, seed=seed)
            times[:n_slow] += 0.5
            found.append(transient_steps(times))
        assert min(found) >= n_slow
        assert np.median(found) <= n_slow + 3

    def test_finds_little_in_a_steady_series(self) -> None:
        found = [transient_steps(noisy(60, seed=seed)) for seed in range(20)]
        assert np.median(found) <= 3

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
    step_s = step_seconds(np.random.default_rng(seed).exponential(size=n_steps))
    assert step_s.n == n_steps
    assert step_s.p50 is not None
    assert step_s.p90 is not None
    assert step_s.p99 is not None
    assert step_s.p50 <= step_s.p90 <= step_s.p99
