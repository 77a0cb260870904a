"""Errors, noise floor and tolerance, from numbers made by hand."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from harness.equivalence import GROUP_SHARE, NOISE_FACTOR, STEP_FACTOR, Checked, Yardstick

EPS = 2.0**-52
FINITE = st.floats(-1e6, 1e6, allow_subnormal=False)
ARRAYS = hnp.arrays(np.float64, hnp.array_shapes(max_dims=2, max_side=4), elements=FINITE)


def yardstick(initial, values, others=None, *, groups=None, kind="trainable"):
    names = list(dict.fromkeys(name for name, _ in values))
    checked = [Checked(name=n, kind=kind, group=(groups or {}).get(n, "trainable")) for n in names]
    return Yardstick.of(checked, initial, values, others or [values] * 3, n_steps=4, eps=EPS)


def of(value, rank=None, name="v"):
    return {(name, rank): np.asarray(value)}


@given(ARRAYS)
def test_the_reference_itself_is_equivalent_with_no_error(value):
    verdict = yardstick(of(np.zeros_like(value)), of(value)).judge(of(value.copy()))
    assert verdict.equivalent
    assert verdict.max_update_error == 0.0
    assert verdict.noise_floor == 0.0
    assert verdict.tolerance == STEP_FACTOR * 4 * EPS


@given(ARRAYS, st.floats(1e-9, 10.0))
def test_an_update_that_is_too_long_is_off_by_the_excess(value, excess):
    assume(np.max(np.abs(value)) > 1e-3)
    verdict = yardstick(of(np.zeros_like(value)), of(value)).judge(of(value * (1 + excess)))
    assert not verdict.equivalent
    assert verdict.max_update_error == pytest.approx(excess, rel=1e-4)


def test_the_error_is_relative_to_how_far_the_variable_moved():
    verdict = yardstick(of([100.0, 0.0]), of([101.0, 0.5])).judge(of([101.0, 0.25]))
    assert verdict.max_update_error == 0.25


def test_the_imaginary_part_counts():
    verdict = yardstick(of(0j), of(1 + 1j)).judge(of(1 + 2j))
    assert verdict.max_update_error == pytest.approx(1 / np.sqrt(2))


def test_a_variable_that_hardly_moves_is_measured_by_its_group():
    initial = of(0.0, name="far") | of(0.0, name="near") | of(0.0, name="alone")
    values = of(8.0, name="far") | of(1e-9, name="near") | of(1e-9, name="alone")
    measure = yardstick(initial, values, groups={"alone": "slot"})
    error = {v.name: v.update_error for v in measure.errors({k: v * 2 for k, v in values.items()})}
    assert error["far"] == 1.0
    assert error["near"] == pytest.approx(1e-9 / (GROUP_SHARE * 8.0))
    assert error["alone"] == 1.0


def test_nothing_moved_and_nothing_differs():
    assert yardstick(of(3.0), of(3.0)).judge(of(3.0)).equivalent
    assert not yardstick(of(3.0), of(3.0)).judge(of(3.5)).equivalent


def test_tolerance_is_ten_noise_floors_and_rounding_of_the_steps():
    others = [of(1.0), of(1.0 + 1e-12), of(1.0 - 3e-12)]
    measure = yardstick(of(0.0), of(1.0), others)
    assert measure.noise_floor == pytest.approx(3e-12, rel=1e-3)
    assert measure.tolerance == NOISE_FACTOR * measure.noise_floor + STEP_FACTOR * 4 * EPS
    assert measure.judge(of(1.0 + 2.9e-11)).equivalent
    assert not measure.judge(of(1.0 + 3.1e-11)).equivalent


@given(hnp.arrays(np.int64, 3), st.integers(0, 2), st.integers(1, 1000))
def test_integers_must_match_exactly(value, place, difference):
    measure = yardstick(of(np.zeros(3, np.int64)), of(value))
    assert measure.judge(of(value.copy())).equivalent
    other = value.copy()
    other[place] ^= difference
    assert measure.judge(of(other)).max_update_error == np.inf


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_must_be_finite(bad):
    assert not yardstick(of([0.0, 0.0]), of([1.0, 1.0])).judge(of([1.0, bad])).equivalent
    # Two that are wrong in the same way are not equivalent either.
    assert not yardstick(of([0.0, 0.0]), of([1.0, bad])).judge(of([1.0, bad])).equivalent
    assert not yardstick(of([0.0]), of([1.0]), [of([1.0]), of([bad]), of([1.0])]).judge(of([1.0])).equivalent


def test_every_copy_counts_and_a_missing_or_misshapen_variable_is_not_equivalent():
    measure = yardstick(of([0.0, 0.0]), of([1.0, 1.0]))
    assert measure.judge(of([1.0, 1.0], 0) | of([1.0, 1.0], 1)).equivalent
    assert measure.judge(of([1.0, 1.0], 0) | of([1.0, 1.5], 1)).max_update_error == 0.5
    assert measure.judge({}).max_update_error == np.inf
    assert not measure.judge(of([1.0])).equivalent


def test_what_each_replica_has_for_itself_is_compared_with_its_own():
    initial = of([0, 0], 0, "seed") | of([7, 0], 1, "seed")
    values = of([0, 3], 0, "seed") | of([7, 3], 1, "seed")
    measure = yardstick(initial, values, kind="state")
    assert measure.judge(values).equivalent
    assert not measure.judge(of([0, 3], 0, "seed") | of([0, 3], 1, "seed")).equivalent
    # A step that no pass copied has one random state, which is rank 0's.
    assert measure.judge(of([0, 3], None, "seed")).equivalent
