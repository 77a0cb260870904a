"""Owners get the sum over all members, and all get what owners have, for any number of members."""

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from strategies.numerics.collectives import all_gather, reduce_scatter
from strategies.passes.collectives.members import GATHER_GROUP_KEY, pair_group_key

v1 = tf.compat.v1
SHAPES = ((3, 2), (4,), (), (5, 1))


def run(n, of_member):
    """What each member's part of a graph comes to, all of them at once on devices of their own."""
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

    total = [sum(each) for each in zip(*map(values_of, range(n)), strict=True)]
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

    made = [values_of(owner)[k] for k, owner in enumerate(owners)]
    for rank, (others, _) in enumerate(run(n, member)):
        theirs = [value for value, owner in zip(made, owners, strict=True) if owner != rank]
        for got, expected in zip(others, theirs, strict=True):
            np.testing.assert_array_equal(got, expected)
