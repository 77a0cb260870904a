"""The laws and bounds that compressors state."""

import math

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from strategies.ir.variable import Fresh
from strategies.numerics.compressors import (
    Cast,
    Feedback,
    Power,
    Quantized,
    Signs,
    TopK,
    codec_of,
    difference,
    next_factor,
    orthonormal,
)
from strategies.plan.compressors import BY_NAME, n_kept, payload_bytes
from strategies.plan.schema import Compression

FEW = settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
TYPES = {"float": np.float32, "double": np.float64}
WITH_OPTIONS = {
    "topk": {"ratio": 0.2},
    "powersgd": {"rank": 2},
    "qsgd": {"levels": 5},
}
ALL = [Compression(name=name, **WITH_OPTIONS.get(name, {})) for name in BY_NAME]
WITH_FEEDBACK = [c for c in ALL if BY_NAME[c.name].feedback]
dims = st.tuples(st.integers(1, 7), st.integers(1, 9))


def gradients(dtype, shape, largest=1e3):
    # No subnormals: processors that flush them to zero are free to.
    finite = st.floats(-largest, largest, width=32, allow_subnormal=False)
    return hnp.arrays(TYPES[dtype], shape, elements=finite)


def first_state(codec, shape, dtype):
    return tuple(
        tf.constant(Fresh(kind=s.initial, dims=s.dims, dtype=s.dtype, seed=7).value())
        for s in codec.states(shape, dtype)
    )


def sent(codec, gradient, state):
    payload, state = codec.encode(tf.constant(gradient), *state)
    return codec.decode(payload, gradient.shape, tf.as_dtype(gradient.dtype)).numpy(), state


class Forgetful(Feedback):
    """Error feedback that does not keep what it owes."""

    def encode(self, gradient, *state):
        payload, (residual, *inner) = Feedback.encode(self, gradient, *state)
        return payload, (tf.zeros_like(residual), *inner)


def bare_codec(compression):
    codec = codec_of(compression, n_terms=1)
    return codec.codec if isinstance(codec, Feedback) else codec


def missing(codec, dtype, steps):
    """Part of the sum of gradients that was neither sent nor kept, in units of rounding."""
    state = first_state(codec, steps[0].shape, dtype)
    total, arrived = np.zeros(steps[0].shape), np.zeros(steps[0].shape)
    size = 0.0
    for gradient in steps:
        decoded, state = sent(codec, gradient, state)
        total += gradient
        arrived += decoded
        size += max(np.abs(gradient).max(), np.abs(decoded).max(), np.abs(state[0].numpy()).max())
    lost = np.abs(total - arrived - state[0].numpy()).max()
    return lost / (np.finfo(TYPES[dtype]).eps * max(size, 1e-30))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("compression", WITH_FEEDBACK, ids=lambda c: c.name)
def test_what_was_sent_and_what_is_kept_are_the_sum_of_gradients(compression, dtype):
    codec = codec_of(compression, n_terms=1)

    @FEW
    @given(st.data(), dims, st.integers(1, 5))
    def law(data, shape, n_steps):
        steps = [data.draw(gradients(dtype, shape)) for _ in range(n_steps)]
        assert missing(codec, dtype, steps) <= 8

    law()


@pytest.mark.parametrize("compression", WITH_FEEDBACK, ids=lambda c: c.name)
def test_the_law_notices_feedback_that_forgets(compression):
    codec = codec_of(compression, n_terms=1)
    steps = list(np.random.default_rng(0).normal(size=(4, 6, 9)) * 100)
    assert isinstance(codec, Feedback)
    assert missing(codec, "double", steps) <= 8
    assert missing(Forgetful(codec=codec.codec), "double", steps) > 1e6


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("compression", ALL, ids=lambda c: c.name)
class TestEveryCompressor:
    @pytest.mark.parametrize("shape", [(3, 5), (1, 1), (40, 33), (3, 3, 2, 8)])
    def test_payloads_have_the_predicted_size(self, compression, dtype, shape):
        codec = codec_of(compression, n_terms=1)
        gradient = tf.ones(shape, TYPES[dtype])
        payload, _ = codec.encode(gradient, *first_state(codec, shape, dtype))
        n_bytes = math.prod(payload.shape.as_list()) * payload.dtype.size
        assert n_bytes == payload_bytes(shape, dtype, compression)

    def test_zeros_stay_zeros_and_nothing_is_owed(self, compression, dtype):
        codec = codec_of(compression, n_terms=1)
        state = first_state(codec, (6, 4), dtype)
        for _ in range(2):
            decoded, state = sent(codec, np.zeros((6, 4), TYPES[dtype]), state)
            assert not decoded.any()
        # A factor that has become zero would never see a gradient again.
        after = np.ones((6, 4), TYPES[dtype])
        assert sent(codec, after, state)[0].any()

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_what_is_not_finite_arrives_and_does_not_stay(self, compression, dtype, bad):
        codec = codec_of(compression, n_terms=1)
        gradient = np.random.default_rng(1).normal(size=(6, 9)).astype(TYPES[dtype])
        state = first_state(codec, gradient.shape, dtype)
        spoilt = gradient.copy()
        spoilt[2, 3] = bad
        decoded, state = sent(codec, spoilt, state)
        assert not np.isfinite(decoded).all()
        if np.isnan(bad):
            assert np.isnan(decoded[2, 3])
        assert all(np.isfinite(part.numpy()).all() for part in state)
        assert np.isfinite(sent(codec, gradient, state)[0]).all()

    def test_the_same_gradients_and_state_give_the_same_payload(self, compression, dtype):
        codec = codec_of(compression, n_terms=1)
        gradient = tf.constant(np.random.default_rng(2).normal(size=(6, 9)).astype(TYPES[dtype]))
        state = first_state(codec, (6, 9), dtype)
        first, second = (codec.encode(gradient, *state)[0].numpy() for _ in range(2))
        assert first.tobytes() == second.tobytes()

    def test_what_is_lost_is_the_difference(self, compression, dtype):
        codec = bare_codec(compression)
        gradient = tf.constant(np.random.default_rng(3).normal(size=(40, 33)).astype(TYPES[dtype]))
        state = first_state(codec, gradient.shape, dtype)
        payload, _ = codec.encode(gradient, *state)
        lost = codec.lost(gradient, payload).numpy()
        np.testing.assert_array_equal(lost, difference(codec, gradient, payload).numpy())


class TestCast:
    @FEW
    @given(st.data(), st.sampled_from(["half", "bfloat16"]), st.integers(1, 5))
    def test_a_sum_keeps_its_bound(self, data, wire, n):
        codec = Cast(wire=wire, n_terms=n)
        largest = min(codec.limit, 1e30)
        values = [data.draw(gradients("double", (5,), largest=float(np.float32(largest)))) for _ in range(n)]
        values = [np.clip(v, -codec.limit, codec.limit) for v in values]
        total = codec.encode(tf.constant(values[0]))[0]
        for value in values[1:]:
            total = total + codec.encode(tf.constant(value))[0]
        error = np.abs(codec.decode(total, (5,), tf.float64).numpy() - sum(values))
        bound = codec.relative_error * sum(map(np.abs, values)) + codec.absolute_error
        assert (error <= bound).all()

    @pytest.mark.parametrize("wire", ["half", "bfloat16"])
    @pytest.mark.parametrize("n", [1, 2, 3, 7, 64])
    def test_large_values_saturate_so_that_their_sum_is_finite(self, wire, n):
        codec = Cast(wire=wire, n_terms=n)
        huge = np.array([1e300, -1e300])
        total = terms = codec.encode(tf.constant(huge))[0]
        for _ in range(n - 1):
            total = total + terms
        assert np.isfinite(codec.decode(total, (2,), tf.float64).numpy()).all()
        decoded = codec.decode(terms, (2,), tf.float64).numpy()
        np.testing.assert_allclose(decoded, [codec.limit, -codec.limit], rtol=2.0**-8)

    def test_half_holds_its_largest_number(self):
        assert Cast(wire="half").limit == 65504.0

    def test_feedback_repays_what_saturation_cut_off(self):
        codec = Feedback(codec=Cast(wire="half"))
        state = first_state(codec, (1,), "float")
        arrived = 0.0
        for gradient in [150_000.0, *[0.0] * 3]:
            decoded, state = sent(codec, np.array([gradient], np.float32), state)
            arrived += decoded[0]
        assert arrived == 150_000.0


class TestTopK:
    @FEW
    @given(st.data(), st.sampled_from([1e-4, 0.003, 0.01, 0.2]))
    def test_no_value_that_is_left_out_is_larger_than_one_that_is_sent(self, data, ratio):
        n = data.draw(st.integers(1, 3000))
        rng = np.random.default_rng(data.draw(st.integers(0, 99)))
        flat = data.draw(
            st.sampled_from(
                [rng.normal(size=n), np.zeros(n), rng.integers(0, 3, n), np.sort(rng.normal(size=n))]
            )
        ).astype(np.float32)
        bad = data.draw(st.lists(st.integers(0, n - 1), max_size=3))
        flat[bad] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
        codec = TopK(ratio=ratio)
        payload, _ = codec.encode(tf.constant(flat))
        k = n_kept(n, ratio)
        ids = payload.numpy()[k:]
        assert len(set(ids)) == len(ids) == k
        rank = np.where(np.isnan(flat), np.inf, np.abs(flat))
        assert rank[ids].min() >= np.delete(rank, ids).max(initial=0)

    @FEW
    @given(st.data(), dims, st.floats(0.05, 1.0))
    def test_it_loses_no_more_than_its_share(self, data, shape, ratio):
        gradient = data.draw(gradients("double", shape))
        decoded, _ = sent(TopK(ratio=ratio), gradient, ())
        k, n = np.count_nonzero(decoded), gradient.size
        assert k <= math.ceil(ratio * n)
        lost = np.sum((decoded - gradient) ** 2)
        assert lost <= (1 - min(n, math.ceil(ratio * n - 1e-9)) / n) * np.sum(gradient**2) * (1 + 1e-12)
        # What arrives is what was there, and nothing larger stayed behind.
        assert (decoded[decoded != 0] == gradient[decoded != 0]).all()
        assert np.abs(gradient[decoded == 0]).max(initial=0) <= np.abs(decoded[decoded != 0]).min(
            initial=np.inf
        )

    def test_members_that_send_the_same_positions_are_added_up(self):
        codec = TopK(ratio=0.5)
        payloads = [
            codec.encode(tf.constant([3.0, -1.0, 2.0, 0.5]))[0],
            codec.encode(tf.constant([1.0, 5.0, 0, 0]))[0],
        ]
        total = codec.decode_sum(tf.stack(payloads), (4,), tf.float32)
        assert total.numpy().tolist() == [4.0, 5.0, 2.0, 0.0]


class TestSigns:
    @FEW
    @given(st.data(), dims)
    def test_it_loses_as_much_as_it_states(self, data, shape):
        gradient = data.draw(gradients("double", shape))
        decoded, _ = sent(Signs(), gradient, ())
        squares = np.sum(gradient**2)
        stated = squares - np.abs(gradient).sum() ** 2 / gradient.size
        assert np.sum((decoded - gradient) ** 2) == pytest.approx(stated, abs=1e-9 * max(squares, 1e-30))
        assert ((decoded >= 0) == (gradient >= 0))[decoded != 0].all()


class TestQuantized:
    @FEW
    @given(st.data(), dims, st.integers(1, 127))
    def test_no_value_is_off_by_more_than_a_level(self, data, shape, levels):
        gradient = data.draw(gradients("double", shape))
        codec = Quantized(levels=levels)
        decoded, _ = sent(codec, gradient, first_state(codec, shape, "double"))
        assert (np.abs(decoded - gradient) <= np.abs(gradient).max() / levels * (1 + 1e-9)).all()

    def test_the_mean_of_many_draws_is_the_gradient(self):
        codec, gradient = Quantized(levels=2), np.linspace(-1.0, 1.0, 12)
        state = first_state(codec, (12,), "double")
        n, total = 4000, np.zeros(12)

        @tf.function
        def drawn(*state):
            payload, after = codec.encode(tf.constant(gradient), *state)
            return codec.decode(payload, (12,), tf.float64), after

        for _ in range(n):
            decoded, state = drawn(*state)
            total += decoded.numpy()
        # Five standard deviations, of at most a quarter of a level each.
        assert np.abs(total / n - gradient).max() < 5 * (0.5 / 2) / math.sqrt(n)

    def test_draws_differ_from_step_to_step(self):
        codec, gradient = Quantized(levels=1), tf.fill([64], 0.5)
        gradient = tf.tensor_scatter_nd_update(gradient, [[0]], [1.0])
        state = first_state(codec, (64,), "float")
        first, state = codec.encode(gradient, *state)
        second, _ = codec.encode(gradient, *state)
        assert (first.numpy() != second.numpy()).any()


class TestPower:
    @FEW
    @given(st.data(), dims, st.integers(1, 3))
    def test_it_never_loses_more_than_there_was(self, data, shape, rank):
        gradient = data.draw(gradients("double", shape))
        codec = Power(rank=rank)
        decoded, _ = sent(codec, gradient, first_state(codec, shape, "double"))
        assert np.linalg.norm(gradient - decoded) <= np.linalg.norm(gradient) * (1 + 1e-9)

    def test_a_gradient_of_low_rank_arrives_whole(self):
        random = np.random.default_rng(3)
        gradient = random.normal(size=(20, 2)) @ random.normal(size=(2, 30))
        codec = Power(rank=2)
        decoded, _ = sent(codec, gradient, first_state(codec, gradient.shape, "double"))
        np.testing.assert_allclose(decoded, gradient, atol=1e-12)

    def test_a_warm_start_comes_closer_with_each_step(self):
        """To the best approximation of its rank, which one iteration from anywhere is not."""
        random = np.random.default_rng(4)
        left, values, right = np.linalg.svd(random.normal(size=(20, 30)), full_matrices=False)
        gradient = (left * values**3) @ right
        best = np.linalg.norm(values[2:] ** 3)
        codec = Power(rank=2)
        state, errors = first_state(codec, gradient.shape, "double"), []
        for _ in range(25):
            decoded, state = sent(codec, gradient, state)
            errors.append(np.linalg.norm(gradient - decoded))
        assert errors[0] > 1.02 * best
        assert errors[-1] < 1.001 * best

    def test_columns_that_vanish_leave_directions_orthonormal(self):
        columns = np.zeros((6, 3))
        columns[:, 0] = 1e-200
        directions = orthonormal(tf.constant(columns)).numpy()
        np.testing.assert_allclose(directions.T @ directions, np.eye(3), atol=1e-12)

    def test_a_factor_keeps_the_columns_that_have_no_successor(self):
        before = tf.constant([[1.0, 2.0], [3.0, 4.0]])
        after = next_factor(tf.constant([[0.0, 3.0], [0.0, 4.0]]), before).numpy()
        np.testing.assert_allclose(after, [[1.0, 0.6], [3.0, 0.8]], rtol=1e-6)
