"""Errors, noise floor and tolerance, from numbers made by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from harness.verification.differences import GROUP_SHARE, NOISE_FACTOR
from harness.verification.reference import STEP_FACTOR, STORES_PER_STEP, Checked, Outcome, Reference
from harness.verification.verdict import Limits

EPS = 2.0**-52
FINITE = st.floats(-1e6, 1e6, allow_subnormal=False)
ARRAYS = hnp.arrays(np.float64, hnp.array_shapes(max_dims=2, max_side=4), elements=FINITE)


LOSSES = (4.0, 3.0, 2.0, 1.0)


def reference_of(initial, values, others=None, *, groups=None, kind="trainable", eps=EPS, with_gradient=()):
    names = list(dict.fromkeys(name for name, _ in values))
    checked = [Checked(name=n, kind=kind, group=(groups or {}).get(n, kind), eps=eps) for n in names]
    own = Outcome(values=values, losses=LOSSES, initial=initial, with_gradient=frozenset(with_gradient))
    return Reference.of(
        checked,
        own,
        [Outcome(values=other, losses=LOSSES) for other in others or [values] * 3],
        loss_eps=EPS,
        gradient_eps=eps,
    )


def outcome(values, losses=None):
    return Outcome(values=values, losses=losses)


def error_of(verdict):
    (only,) = verdict.variables
    return only.update_error


def of(value, rank=None, name="v"):
    return {(name, rank): np.asarray(value)}


@given(ARRAYS)
@example(np.array([1e-300]))  # whose rounding is subnormal
def test_the_reference_itself_is_equivalent_with_no_error(value):
    verdict = reference_of(of(np.zeros_like(value)), of(value)).judge(outcome(of(value.copy())))
    assert verdict.equivalent
    assert error_of(verdict) == 0.0
    assert verdict.variables[0].limits.floor == 0.0
    stored = EPS if value.any() else 0.0
    assert verdict.variables[0].limits.tolerance == 4 * (STEP_FACTOR * EPS + STORES_PER_STEP * stored)


@given(ARRAYS, st.floats(1e-9, 10.0))
def test_an_update_that_is_too_long_is_off_by_the_excess(value, excess):
    assume(np.max(np.abs(value)) > 1e-3)
    verdict = reference_of(of(np.zeros_like(value)), of(value)).judge(outcome(of(value * (1 + excess))))
    assert not verdict.equivalent
    assert error_of(verdict) == pytest.approx(excess, rel=1e-4)


def test_the_error_is_relative_to_how_far_the_variable_moved():
    verdict = reference_of(of([100.0, 0.0]), of([101.0, 0.5])).judge(outcome(of([101.0, 0.25])))
    assert error_of(verdict) == 0.25


def test_the_imaginary_part_counts():
    verdict = reference_of(of(0j), of(1 + 1j)).judge(outcome(of(1 + 2j)))
    assert error_of(verdict) == pytest.approx(1 / np.sqrt(2))


def test_a_variable_that_hardly_moves_is_measured_by_its_group():
    initial = of(0.0, name="far") | of(0.0, name="near") | of(0.0, name="alone")
    values = of(8.0, name="far") | of(1e-9, name="near") | of(1e-9, name="alone")
    measure = reference_of(initial, values, groups={"alone": "slot"})
    error = measure.errors({k: v * 2 for k, v in values.items()})
    assert error["far"] == 1.0
    assert error["near"] == pytest.approx(1e-9 / (GROUP_SHARE * 8.0))
    assert error["alone"] == 1.0


def test_nothing_moved_and_nothing_differs():
    assert reference_of(of(3.0), of(3.0)).judge(outcome(of(3.0))).equivalent
    assert not reference_of(of(3.0), of(3.0)).judge(outcome(of(3.5))).equivalent


def test_tolerance_is_ten_noise_floors_and_rounding_of_the_steps():
    others = [of(1.0), of(1.0 + 1e-12), of(1.0 - 3e-12)]
    measure = reference_of(of(0.0), of(1.0), others)
    limits = measure.tolerances.limits["v"]
    assert limits.floor == pytest.approx(3e-12, rel=1e-3)
    assert limits.tolerance == NOISE_FACTOR * limits.floor + 4 * (STEP_FACTOR + STORES_PER_STEP) * EPS
    assert measure.judge(outcome(of(1.0 + 2.9e-11))).equivalent
    assert not measure.judge(outcome(of(1.0 + 3.1e-11))).equivalent


def test_a_number_may_be_stored_as_the_next_one_in_each_step():
    """References that agree by chance leave a movement far smaller than the number's last digit."""
    measure = reference_of(of([1.0, 1e9]), of([1.0 + 1e-4, 1e9]))
    assert measure.tolerances.limits["v"].floor == 0.0
    assert measure.judge(outcome(of([1.0 + 1e-4 + 8 * EPS, 1e9]))).equivalent is True
    assert measure.judge(outcome(of([1.0 + 1e-4 + 16 * EPS, 1e9]))).equivalent is False
    # What was not stored anew has no rounding, however large it is.
    assert measure.judge(outcome(of([1.0 + 1e-4, np.nextafter(1e9, 2e9)]))).equivalent is False


def test_rounding_of_what_is_stored_hides_a_movement_of_few_digits():
    """In float32, a number near one that moves by a few of its last digits shows nothing."""
    eps = 2.0**-23
    measure = reference_of(of([1.0]), of([1.0 + 16 * eps]), eps=eps)
    assert measure.judge(outcome(of([1.0 + 16 * eps]))).equivalent is None


@given(hnp.arrays(np.int64, 3), st.integers(0, 2), st.integers(1, 1000))
def test_integers_must_match_exactly(value, place, difference):
    measure = reference_of(of(np.zeros(3, np.int64)), of(value))
    assert measure.judge(outcome(of(value.copy()))).equivalent
    other = value.copy()
    other[place] ^= difference
    assert error_of(measure.judge(outcome(of(other)))) == np.inf


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_must_be_finite(bad):
    assert not reference_of(of([0.0, 0.0]), of([1.0, 1.0])).judge(outcome(of([1.0, bad]))).equivalent
    # Two that are wrong in the same way are not equivalent either.
    assert not reference_of(of([0.0, 0.0]), of([1.0, bad])).judge(outcome(of([1.0, bad]))).equivalent
    assert (
        not reference_of(of([0.0]), of([1.0]), [of([1.0]), of([bad]), of([1.0])])
        .judge(outcome(of([1.0])))
        .equivalent
    )


def test_every_copy_counts_and_a_missing_or_misshapen_variable_is_not_equivalent():
    measure = reference_of(of([0.0, 0.0]), of([1.0, 1.0]))
    assert measure.judge(outcome(of([1.0, 1.0], 0) | of([1.0, 1.0], 1))).equivalent
    assert error_of(measure.judge(outcome(of([1.0, 1.0], 0) | of([1.0, 1.5], 1)))) == 0.5
    assert error_of(measure.judge(outcome({}))) == np.inf
    assert not measure.judge(outcome(of([1.0]))).equivalent


def test_what_each_replica_has_for_itself_is_compared_with_its_own():
    initial = of([0, 0], 0, "seed") | of([7, 0], 1, "seed")
    values = of([0, 3], 0, "seed") | of([7, 3], 1, "seed")
    measure = reference_of(initial, values, kind="state")
    assert measure.judge(outcome(values)).equivalent
    assert not measure.judge(outcome(of([0, 3], 0, "seed") | of([0, 3], 1, "seed"))).equivalent
    # A step that no pass copied has one random state, which is rank 0's.
    assert measure.judge(outcome(of([0, 3], None, "seed"))).equivalent


def test_each_variable_has_a_floor_of_its_own():
    """A variable that is nothing but rounding must not excuse another one."""
    initial = of(0.0, name="noisy") | of(np.zeros(99), name="calm")
    values = of(1.0, name="noisy") | of(np.ones(99), name="calm")
    other = of(-1.0, name="noisy") | of(np.ones(99), name="calm")
    measure = reference_of(initial, values, [other] * 3)
    verdict = measure.judge(outcome(values))
    assert verdict.equivalent is True
    assert verdict.undecidable == ("noisy",)
    assert "noisy" in verdict.why_undecidable
    assert verdict.nearest.name == "calm"
    wrong = measure.judge(outcome(of(1.0, name="noisy") | of(np.full(99, 1.5), name="calm")))
    assert wrong.equivalent is False
    assert wrong.reason.startswith("calm is off by 0.5")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_rounding_may_move_anywhere_must_stay_finite(bad):
    initial, values = of([0.0, 0.0]), of([1.0, 1.0])
    measure = reference_of(initial, values, [of([-1.0, 1.0])] * 3)
    assert measure.judge(outcome(of([0.3, 1.0]))).equivalent is None
    assert measure.judge(outcome(of([bad, 1.0]))).equivalent is False


@pytest.mark.parametrize("n_calm", [94, 95])
@pytest.mark.parametrize("kind", ["trainable", "slot", "state"])
def test_too_small_a_part_to_judge_is_undecidable(n_calm, kind):
    initial = of(np.zeros(n_calm), name="calm") | of(np.zeros(100 - n_calm), name="noisy")
    values = of(np.ones(n_calm), name="calm") | of(np.ones(100 - n_calm), name="noisy")
    other = of(np.ones(n_calm), name="calm") | of(-np.ones(100 - n_calm), name="noisy")
    verdict = reference_of(initial, values, [other] * 3, kind=kind).judge(outcome(values))
    enough = n_calm == 95 or kind == "state"
    assert verdict.equivalent is (True if enough else None)
    if not enough:
        assert verdict.reason.startswith("only 94 % of the elements of the")
        assert "fewer steps" in verdict.reason
    narrow = reference_of(initial, values, [other] * 3, kind=kind, eps=2.0**-23).judge(outcome(values))
    assert "--dtype float64" in narrow.why_undecidable


def test_a_trainable_that_stays_where_it_is_for_all_its_gradient_shows_nothing():
    still = of([1.0, 2.0])
    assert reference_of(still, still).judge(outcome(still)).equivalent is True
    verdict = reference_of(still, still, with_gradient=["v"]).judge(outcome(still))
    assert verdict.equivalent is None
    assert "v did not move" in verdict.reason
    measure = reference_of(still, still, with_gradient=["v"])
    assert measure.judge(outcome(of([1.0, 2.5]))).equivalent is False


def test_losses_are_compared_too():
    measure = reference_of(of(0.0), of(1.0))
    assert measure.judge(outcome(of(1.0), losses=LOSSES)).equivalent is True
    halved = measure.judge(outcome(of(1.0), losses=[loss / 2 for loss in LOSSES]))
    assert halved.equivalent is False
    assert halved.reason.startswith("the losses are off by 0.5")
    assert halved.loss.error == 0.5
    assert measure.judge(outcome(of(1.0), losses=[*LOSSES[:3], np.nan])).equivalent is False
    assert measure.judge(outcome(of(1.0), losses=LOSSES[:3])).equivalent is False


def beside_another(before, after, *, kind="state"):
    """A reference of a variable that moved by 1, and of one beside it."""
    initial = of(np.zeros(99), name="average") | of(before, name="beside")
    values = of(np.ones(99), name="average") | of(after, name="beside")
    return reference_of(initial, values, kind=kind), values


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([np.inf, 0.0], [np.inf, 0.0]),
        ([-np.inf, 0.0], [-np.inf, 0.5]),
        ([np.inf, 0.0], [0.3, 0.0]),
        ([1.0, 0.0], [np.inf, 0.5]),
    ],
    ids=["a mask", "beside a mask", "a minimum", "what overflows"],
)
def test_state_that_holds_infinities_hides_no_other_nor_itself(before, after):
    measured, values = beside_another(np.array(before), np.array(after))
    assert measured.judge(outcome(values)).equivalent
    other = measured.judge(outcome(values | of(np.full(99, 0.5), name="average")))
    assert other.equivalent is False
    changed = np.array(after)
    changed[1] += 0.1
    own = measured.judge(outcome(values | of(changed, name="beside")))
    assert own.equivalent is False
    assert measured.judge(outcome(values | of(np.zeros(2), name="beside"))).equivalent is False


@pytest.mark.parametrize("kind", ["trainable", "slot"])
def test_a_mask_among_trainables_hides_none_of_them_nor_itself(kind):
    mask = np.array([-np.inf, 0.0])
    measured, values = beside_another(mask, mask, kind=kind)
    assert measured.judge(outcome(values)).equivalent
    assert measured.judge(outcome(values | of(np.full(99, 0.5), name="average"))).equivalent is False
    assert measured.judge(outcome(values | of(np.zeros(2), name="beside"))).equivalent is False


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("kind", ["trainable", "slot"])
def test_what_goes_out_of_the_numbers_in_the_reference_hides_no_other(bad, kind):
    measured, values = beside_another(np.zeros(1), np.array([bad]), kind=kind)
    verdict = measured.judge(outcome(values))
    assert verdict.undecidable == ("beside",)
    assert verdict.why_undecidable.startswith("beside holds numbers that are not finite")
    assert measured.judge(outcome(values | of(np.full(99, 1.0 + 1e-9), name="average"))).equivalent is False


def test_a_count_beside_averages_lends_them_no_unit():
    measured, values = beside_another(np.zeros(1), np.array([1e6]))
    assert measured.judge(outcome(values)).equivalent
    off = measured.judge(outcome(values | of(np.full(99, 1.01), name="average")))
    assert off.equivalent is False
    assert max(v.update_error for v in off.variables) == pytest.approx(0.01)


def test_what_rounding_may_move_is_wrong_where_no_rounding_moves_it():
    initial, values = of(np.zeros(99), name="calm") | of(0.0, name="noisy"), of(np.ones(99), name="calm")
    measured = reference_of(initial, values | of(1.0, name="noisy"), [values | of(-1.0, name="noisy")] * 3)
    assert measured.judge(outcome(values | of(50.0, name="noisy"))).equivalent is True
    assert measured.judge(outcome(values | of(1e6, name="noisy"))).equivalent is False


FLOAT32 = 2.0**-23
START, END = of(0.0), of(1.0)


@pytest.mark.parametrize(
    ("actual", "eps", "may_be"),
    [
        (outcome(of(1.01)), FLOAT32, True),
        (outcome(of(1.01)), EPS, False),
        (outcome(END), FLOAT32, False),
        (outcome(of(3.0)), FLOAT32, False),
        (outcome(of(np.nan)), FLOAT32, False),
        (outcome({}), FLOAT32, False),
        (outcome(END, losses=(4.0, 3.0, 2.0, 1.01)), FLOAT32, True),
        (outcome(END, losses=(4.0, 3.0, 2.0, np.nan)), FLOAT32, False),
    ],
)
def test_rounding_may_explain_small_faults_in_types_coarser_than_float64(actual, eps, may_be):
    reference = reference_of(START, END, eps=eps)
    assert reference.may_be_rounding(reference.judge(actual)) is may_be


@pytest.mark.parametrize(
    ("jump", "actual", "equivalent"),
    [
        (1.005, 1.01, True),
        (1.05, 1.01, None),
        (1.05, 1.5, None),
        (1.05, 1.6, False),  # beyond ten jumps, although the variable is undecidable
        (1.0, 1.01, False),
    ],
)
def test_more_references_explain_ten_times_what_they_differ_by(jump, actual, equivalent):
    few, more = (reference_of(START, END, [of(value)] * 3, eps=FLOAT32) for value in (1.0, jump))
    wrong = outcome(of(actual))
    verdict = few.judge(wrong)
    assert verdict.equivalent is False
    assert more.tolerances.judge_again(verdict).equivalent is equivalent


def test_losses_that_seem_wrong_are_explained_too():
    few = reference_of(START, END, eps=FLOAT32)
    wrong = outcome(END, losses=(4.0, 3.0, 2.0, 1.01))
    verdict = few.judge(wrong)
    wide = Limits(floor=0.001, tolerance=0.01, eps=FLOAT32)
    assert replace(few.tolerances, loss_limits=wide).judge_again(verdict).equivalent is True
    assert few.tolerances.judge_again(verdict).reason == verdict.reason


def test_a_small_variable_that_rounding_hides_is_not_equivalent_for_the_others():
    """A bias of one element beside a kernel of 99."""
    start = of(np.zeros(99), name="kernel") | of(np.zeros(1), name="bias")
    end, jump, actual = (
        of(np.ones(99), name="kernel") | of([bias], name="bias") for bias in (1.0, 1.05, 1.2)
    )
    few, more = (reference_of(start, end, [other] * 3, eps=FLOAT32) for other in (end, jump))
    verdict = few.judge(outcome(actual))
    assert verdict.wrong == ("bias",)
    again = more.tolerances.judge_again(verdict)
    assert again.equivalent is None
    assert again.reason == "rounding may explain the error of bias (verify with --dtype float64)"


def test_a_reference_that_overflows_explains_nothing():
    few = reference_of(START, END, eps=FLOAT32)
    overflown = reference_of(START, END, [of(np.inf)] * 3, eps=FLOAT32)
    verdict = few.judge(outcome(of(1.01)))
    assert overflown.tolerances.judge_again(verdict) is verdict


def test_only_strategies_that_must_equal_the_reference_are_in_doubt():
    reference = reference_of(START, END, eps=FLOAT32)
    verdict = reference.judge(outcome(of(1.01)))
    classes = ("exact", "bounded", "statistical", "control")
    assert [reference.may_be_rounding(verdict, name) for name in classes] == [True, False, False, False]
