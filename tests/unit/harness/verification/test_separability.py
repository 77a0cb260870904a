""" """

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from harness.errors import UsageError
from harness.verification.separability import (
    Crossing,
    Differences,
    Noise,
    Totals,
    WayOut,
    judge,
    part_of_draw,
    unknown,
)
from strategies.topology import Topology

NUMBERS = st.floats(-10, 10, allow_subnormal=False)
ROWS = arrays(np.float64, (3, 2), elements=NUMBERS)


def gradient(name, *values, rows=None):
    return Crossing(variable=name, values=np.array(values, np.float64), rows=rows)


def totals(loss, *gradients, state=()):
    return Totals(loss=loss, gradients=gradients, state=state)


def differences(value=0.0, *, loss=0.0, state=None):
    return Differences(loss=loss, gradients={"w": value, "b": 0.0}, state=state or {})


def unasked():
    raise AssertionError("nothing needs this")


def unmeasured():
    unasked()
    yield


def judged(declared, *, floor=0.0, other=1.0, ways_out=None, reduction="mean"):
    return judge(
        declared,
        Noise([floor if isinstance(floor, Differences) else differences(floor)]),
        lambda: differences(other),
        {
            WayOut(cause="its cause", remedy=text): (lambda left=left: differences(left))
            for text, left in (ways_out or {}).items()
        },
        reduction=reduction,
        n_shards=3,
    )


class TestDifferences:
    def test_are_relative_to_the_whole_batch(self):
        whole = totals(2.0, gradient("w", 1.0, -4.0), state=(gradient("mean", 5.0),))
        other = totals(2.5, gradient("w", 1.0, -3.0), state=(gradient("mean", 4.0),))
        assert Differences.of(whole, other) == Differences(
            loss=0.25, gradients={"w": 0.25}, state={"mean": 0.2}
        )

    def test_of_a_small_gradient_are_relative_to_a_thousandth_of_the_largest(self):
        whole = totals(1.0, gradient("w", 100.0), gradient("b", 1e-15))
        other = totals(1.0, gradient("w", 100.0), gradient("b", 3e-15))
        assert Differences.of(whole, other).gradients["b"] == pytest.approx(2e-14)

    def test_without_any_gradient_anything_else_is_infinitely_far(self):
        whole = totals(0.0, gradient("w", 0.0))
        assert Differences.of(whole, whole) == Differences(loss=0.0, gradients={"w": 0.0}, state={})
        other = Differences.of(whole, totals(1e-300, gradient("w", 1e-300)))
        assert (other.loss, other.gradients["w"]) == (np.inf, np.inf)

    def test_what_is_not_finite_is_infinitely_far(self):
        whole = totals(1.0, gradient("w", 1.0))
        other = Differences.of(whole, totals(np.nan, gradient("w", np.inf)))
        assert (other.loss, other.gradients["w"]) == (np.inf, np.inf)
        assert whole.is_finite()
        assert not totals(np.nan).is_finite()
        assert not totals(1.0, gradient("w", np.nan)).is_finite()

    def test_counts_agree_or_do_not(self):
        def counted(n):
            return totals(1.0, state=(Crossing(variable="n", values=np.array([n])),))

        assert Differences.of(counted(7), counted(7)).state == {"n": 0.0}
        assert Differences.of(counted(7), counted(8)).state == {"n": np.inf}

    @given(ROWS, st.permutations(range(3)))
    def test_rows_are_compared_by_their_ids(self, values, order):
        ids = np.array([40, 2, 7])
        whole = totals(1.0, Crossing(variable="table", values=values, rows=ids))
        # In another order, and each in two halves.
        order = np.array(order)
        halves = np.concatenate([values[order] / 2, values[order] / 2])
        other = totals(1.0, Crossing(variable="table", values=halves, rows=np.tile(ids[order], 2)))
        assert Differences.of(whole, other).gradients["table"] == 0.0

    def test_rows_of_one_alone_count(self):
        whole = totals(1.0, gradient("table", [4.0], rows=np.array([3])))
        other = totals(1.0, gradient("table", [4.0], [1.0], rows=np.array([3, 9])))
        assert Differences.of(whole, other).gradients["table"] == 0.25
        assert Differences.of(other, whole).gradients["table"] == 0.25

    def test_the_largest_of_several(self):
        one, two = differences(0.1, loss=0.5, state={"s": 0.2}), differences(0.3, loss=0.4, state={"s": 0.9})
        assert Differences.largest_of([one, two]) == differences(0.3, loss=0.5, state={"s": 0.9})


@given(ROWS, ROWS, st.integers(2, 5), st.integers(1, 4))
def test_what_every_shard_repeats_is_taken_out_of_sums(of_examples, repeated, n_few, more):
    def summed(n):
        values = of_examples + n * repeated
        return totals(1.0 + 2 * n, Crossing(variable="w", values=values), table(values))

    def table(values):
        return Crossing(variable="table", values=values, rows=np.arange(3))

    one = Totals.of_one_shard(summed(n_few), n_few, summed(n_few + more), n_few + more)
    differences = Differences.of(summed(1), one)
    scale = max(1e-3, np.max(np.abs(of_examples + repeated)))
    assert differences.loss < 1e-14
    assert max(differences.gradients.values()) * np.max(np.abs(of_examples + repeated)) <= 1e-12 * max(
        scale, 100
    )


class TestJudge:
    @pytest.mark.parametrize("reduction", ["mean", "sum"])
    def test_what_rounding_explains_is_separable(self, reduction):
        verdict = judge(differences(2e-14), Noise(unmeasured()), unasked, {}, reduction=reduction, n_shards=3)
        assert verdict.separable is True
        assert verdict.explanation.startswith(f"the {reduction} over 3 shards is what the step computes")

    @pytest.mark.parametrize(
        "declared", [differences(5e-5), differences(loss=5e-5), differences(5e-5, state={"s": 5e-5})]
    )
    def test_a_mild_coupling_is_not(self, declared):
        verdict = judged(declared)
        assert verdict.separable is False
        assert verdict.explanation.startswith("3 shards train differently from the whole batch (")
        assert " by 0.005 %" in verdict.explanation

    def test_the_worst_variable_is_named(self):
        verdict = judged(differences(0.25, loss=0.5, state={"s": 0.125}))
        assert verdict.separable is False
        assert (verdict.gradient_difference, verdict.variable) == (0.25, "w")
        assert (verdict.state_difference, verdict.state_variable) == (0.125, "s")
        assert verdict.loss_difference == 0.5

    def test_a_sum_is_refused_unless_it_is_declared(self):
        with pytest.raises(UsageError, match=r'must be a mean .* got a sum.* TrainStep\(reduction="sum"\)'):
            judged(differences(0.5), other=1e-15)

    def test_so_is_a_mean_that_is_declared_to_be_a_sum(self):
        with pytest.raises(UsageError, match=r"got a mean.*drop reduction"):
            judged(differences(0.5), other=1e-15, reduction="sum")

    def test_gradients_that_add_up_without_the_loss_are_no_sum(self):
        declared = differences(0.5)
        other = differences(0.0, loss=0.5)
        verdict = judge(declared, Noise([differences()]), lambda: other, {}, reduction="mean", n_shards=3)
        assert verdict.separable is False

    def test_the_first_way_out_that_leaves_no_difference_is_told(self):
        verdict = judged(differences(0.5), ways_out={"do this": 0.1, "do that": 1e-14, "do more": 0.0})
        assert verdict.explanation == (
            "3 shards train differently from the whole batch (its cause: gradient of w differs by 50 %, loss "
            "by 0 %); do that"
        )
        verdict = judged(differences(0.5), ways_out={"do this": 0.1})
        assert "its examples interact, as in" in verdict.explanation
        assert len(verdict.explanation) <= 200

    def test_coarser_rounding_explains_more(self):
        assert judged(differences(5e-7), floor=1e-7).separable is True
        assert judged(differences(5e-6), floor=1e-7).separable is False

    def test_where_rounding_hides_a_coupling_nothing_is_said(self):
        verdict = judged(differences(5e-4), floor=1e-3)
        assert verdict.separable is None
        assert "rounding alone can cause that" in verdict.explanation
        assert judged(differences(0.5), floor=1e-3).separable is False

    def test_one_gradient_that_is_rounding_excuses_no_other(self):
        floor = Differences(loss=0.0, gradients={"w": 0.0, "b": 1.0}, state={})
        declared = Differences(loss=0.0, gradients={"w": 1e-3, "b": 0.5}, state={})
        assert judged(declared, floor=floor).separable is False

    def test_state_that_is_nothing_but_rounding_says_nothing(self):
        floor = differences(state={"mean of what is normalised": 0.7, "other": 0.0})
        declared = differences(1e-15, state={"mean of what is normalised": 0.9, "other": 1e-15})
        assert judged(declared, floor=floor).separable is True
        declared = differences(1e-15, state={"mean of what is normalised": 0.9, "other": 1e-3})
        assert judged(declared, floor=floor).separable is False

    def test_what_nobody_reads_changes_nothing_and_is_told(self):
        tallied = Differences(loss=0.0, gradients={"w": 1e-15}, state={}, tallies={"loss/total": 2.0})
        verdict = judge(tallied, Noise(unmeasured()), unasked, {}, reduction="mean", n_shards=3)
        assert verdict.separable is True
        assert "; loss/total differs, because every shard adds to it" in verdict.explanation

    def test_state_alone_that_differs_is_no_coupling_of_examples(self):
        verdict = judged(differences(1e-15, loss=1e-16, state={"counter": 5.0}))
        assert verdict.separable is False
        assert "(each changes forward state counter, which the step reads: it differs by 5e+02 %)" in (
            verdict.explanation
        )
        assert "interact" not in verdict.explanation
        counted = judged(differences(1e-15, state={"counter": np.inf})).explanation
        assert "which the step reads: a counter, for example)" in counted

    def test_what_is_not_finite_on_shards_alone_is_not_separable(self):
        assert judged(differences(np.inf), other=np.inf).separable is False


class TestNoise:
    @pytest.mark.parametrize(
        ("difference", "first", "answer", "n_measured"),
        [
            (1e-10, None, True, 0),
            (0.5, 1e-9, False, 1),
            (5e-7, 1e-7, True, 1),
            # Ten times as much would explain it, and the second rounding makes so much.
            (5e-7, 1e-8, True, 2),
            (5e-7, 4e-9, False, 1),
            # Ten times as much could hide a coupling.
            (5e-4, 1e-5, None, 2),
        ],
    )
    def test_is_measured_where_it_could_change_the_answer(self, difference, first, answer, n_measured):
        measured = []

        def measurements():
            for value in (first, 1e-3 if difference == 5e-4 else 1e-7, 0.0):
                measured.append(value)
                yield differences(value)

        assert Noise(measurements()).explains(differences(difference)) is answer
        assert len(measured) == n_measured

    def test_the_largest_counts_from_then_on(self):
        noise = Noise([differences(1e-8), differences(1e-7)])
        assert noise.explains(differences(5e-7)) is True
        assert noise.explains(differences(9e-7)) is True
        assert noise.explains(differences(2e-6)) is False


def test_no_answer_says_why():
    verdict = unknown("there was no time")
    assert verdict.separable is None
    assert verdict.explanation.endswith("whole batch: there was no time")


SHARDS = Topology(replicas_per_task=(2, 1), batch_size=7).shards()
WHOLE = np.arange(14 * 3).reshape(14, 3)


def part(whole, shape, shard=SHARDS[1]):
    return part_of_draw(whole, shape, shard, 7)


@given(st.integers(0, 2), st.integers(1, 3), st.integers(1, 3))
def test_shards_together_take_the_whole_draw(axis, per_example, other):
    shape = [other, other + 1, other]
    shape[axis] = 7 * per_example
    whole = np.arange(np.prod(shape)).reshape(shape)
    own = [[per_example * s.examples if a == axis else n for a, n in enumerate(shape)] for s in SHARDS]
    parts = [part(whole, shape, shard) for shape, shard in zip(own, SHARDS, strict=True)]
    assert [p.shape for p in parts] == [tuple(shape) for shape in own]
    np.testing.assert_array_equal(np.concatenate(parts, axis), whole)


def test_a_draw_of_equal_shape_is_the_shard_s_as_it_is():
    assert part(WHOLE, (14, 3)) is WHOLE


@pytest.mark.parametrize("shape", [(2, 3), (5, 3), (4, 1), (4,), (4, 3, 1), ()])
def test_a_draw_without_an_axis_of_examples_has_no_parts(shape):
    assert part(WHOLE, shape) is None


def test_a_draw_that_an_axis_of_examples_does_not_divide_has_no_parts():
    assert part(np.zeros(15), (4,)) is None
