"""Collectives carry every type as it is, to a bit."""

import numpy as np
import pytest

from strategies.numerics.collectives import all_gather, carried, reduce_scatter
from strategies.passes.collectives.members import GATHER_GROUP_KEY, pair_group_key

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


v1 = tf.compat.v1
SHAPES = ((3, 2), (4,), (), (5, 1))


def run(n, of_member):
    """Results of each member's part of a graph, all of them run at once on devices of their own."""
    config = v1.ConfigProto(device_count={"CPU": n}, inter_op_parallelism_threads=2)
    with tf.Graph().as_default() as graph:
        results = []
        for rank in range(n):
            with tf.device(f"/job:localhost/replica:0/task:0/device:CPU:{rank}"):
                results.append(of_member(rank))
        with v1.Session(graph=graph, config=config) as session:
            return session.run(results)


def values_of(rank):
    """Other numbers for each member, in which no two elements are alike."""
    sizes = [int(np.prod(shape)) for shape in SHAPES]
    ends = np.cumsum(sizes)
    return [
        100.0 * rank + np.arange(end - size, end, dtype=np.float64).reshape(shape)
        for size, end, shape in zip(sizes, ends, SHAPES, strict=True)
    ]


# With twelve members TensorFlow's own all-to-all gives some what belongs to others.
CASES = pytest.mark.parametrize(
    ("n", "owners", "keys"),
    [
        (2, (0, 1, 1, 0), (1,)),
        (2, (1, 1, 1, 1), (1, 2, 3)),
        (3, (2, 0, 2, 0), (1, 2)),
        (12, (11, 1, 10, 0), (1,)),
    ],
)


@CASES
def test_owners_get_sums(n, owners, keys):
    def member(rank):
        pairs = tuple((other, pair_group_key(rank, other, n)) for other in range(n) if other != rank)
        sums, done = reduce_scatter(
            *map(tf.constant, values_of(rank)),
            owners=owners,
            rank=rank,
            order=tuple(range(n)),
            pairs=pairs,
            keys=keys,
            hint="auto",
        )
        return sums, done

    total = [sum(parts) for parts in zip(*map(values_of, range(n)), strict=True)]
    for rank, (sums, _) in enumerate(run(n, member)):
        own = [t for t, owner in zip(total, owners, strict=True) if owner == rank]
        assert [s.shape for s in sums] == [np.shape(t) for t in own]
        for got, expected in zip(sums, own, strict=True):
            np.testing.assert_array_equal(got, expected)


@CASES
def test_all_get_what_owners_have(n, owners, keys):
    def member(rank):
        own = [v for v, owner in zip(values_of(rank), owners, strict=True) if owner == rank]
        return all_gather(
            *map(tf.constant, own),
            shapes=SHAPES,
            owners=owners,
            rank=rank,
            order=tuple(range(n)),
            group_key=GATHER_GROUP_KEY,
            keys=keys,
            dtype=tf.float64.as_datatype_enum,
            hint="auto",
        )

    results = [values_of(owner)[k] for k, owner in enumerate(owners)]
    for rank, (others, _) in enumerate(run(n, member)):
        theirs = [value for value, owner in zip(results, owners, strict=True) if owner != rank]
        for got, expected in zip(others, theirs, strict=True):
            np.testing.assert_array_equal(got, expected)
