"""Collectives carry every type as it is, to a bit."""

import numpy as np
import pytest

from strategies.numerics.collectives import carried

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")


KERNELS = {
    "adds": {"float16", "bfloat16", "float32", "float64", "int32", "int64"},
    "moves": {"float16", "float32", "float64", "int32", "int64"},
}
"""Types that TensorFlow's collectives take."""
TYPES = [
    *(tf.int8, tf.uint8, tf.int16, tf.uint16, tf.int32, tf.uint32, tf.int64, tf.uint64),
    *(tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128),
]


def values(dtype):
    bits = np.random.default_rng(0).integers(0, 256, (5, 3, dtype.size), dtype=np.uint8)
    return tf.constant(bits.reshape(-1).view(dtype.as_numpy_dtype).reshape(5, 3))


@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: dtype.name)
def test_what_is_moved_arrives_as_it_is(dtype):
    def twice(part):
        assert part.dtype.name in KERNELS["moves"]
        return tf.concat([part, part], 0)

    sent = values(dtype)
    arrived = carried(sent, twice, adds=False)
    assert arrived.dtype == dtype
    assert arrived.numpy().tobytes() == 2 * sent.numpy().tobytes()


@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: dtype.name)
def test_sums_are_those_of_the_type(dtype):
    def doubled(part):
        assert part.dtype.name in KERNELS["adds"]
        return part + part

    sent = values(dtype) if dtype.is_integer else tf.cast(values(tf.int8), dtype)
    total = carried(sent, doubled, adds=True)
    assert total.dtype == dtype
    with np.errstate(over="ignore"):
        expected = sent.numpy() + sent.numpy()
    np.testing.assert_array_equal(total.numpy(), expected)
