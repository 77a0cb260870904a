"""Owners get sums of their parts, and all get what owners have, whoever owns which part."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.numerics import shards
from strategies.numerics.collectives import gathered
from strategies.numerics.shards import all_gather, reduce_scatter
from strategies.passes.collectives.members import GATHER_GROUP_KEY, SCATTER_KEY
from strategies.plan.sharding import ShardedTensor, in_row_order, row_length

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")
v1 = tf.compat.v1


def sharded(dims, axis, sizes, owners):
    return ShardedTensor(dims=dims, axis=axis, sizes=tuple(sizes), owners=tuple(owners))


def whole(dims, owner):
    return sharded(dims, 0, (dims[0] if dims else 1,), (owner,))


def is_whole(tensor):
    return len(tensor.sizes) == 1


def bounds(tensor):
    return list(itertools.pairwise(itertools.accumulate(tensor.sizes, initial=0)))


def values_of(tensors, rank):
    """Other numbers for each member, in which no two elements are alike."""
    sizes = [int(np.prod(tensor.dims)) for tensor in tensors]
    ends = np.cumsum(sizes)
    return [
        1000.0 * rank + np.arange(end - size, end, dtype=np.float64).reshape(tensor.dims)
        for size, end, tensor in zip(sizes, ends, tensors, strict=True)
    ]


def part(value, tensor, start, stop):
    along = (slice(None),) * tensor.axis + (slice(start, stop),)
    return value[along] if tensor.dims else value


def parts_of(values, tensors, rank):
    """A member's parts, tensor by tensor."""
    return [
        part(value, tensor, start, stop)
        for value, tensor in zip(values, tensors, strict=True)
        for (start, stop), owner in zip(bounds(tensor), tensor.owners, strict=True)
        if owner == rank
    ]


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


TENSORS = {
    "wholes": (2, (whole((3, 2), 0), whole((4,), 1), whole((), 1), whole((5, 1), 0))),
    "one-owner": (2, (whole((3, 2), 1), whole((), 1))),
    "even": (2, (sharded((6, 2), 0, (3, 3), (0, 1)), sharded((2, 4), 1, (2, 2), (0, 1)))),
    "uneven": (3, (sharded((7, 2), 0, (2, 3, 2), (0, 1, 2)), whole((3,), 2), whole((), 0))),
    "balanced": (3, (sharded((7, 2), 0, (2, 3, 2), (0, 1, 2)), *(whole((2,), rank) for rank in range(3)))),
    "in-the-middle": (3, (sharded((2, 4, 3), 1, (2, 1, 1), (0, 1, 2)), whole((2,), 1))),
    "not-all-own": (3, (sharded((5, 2), 0, (2, 3), (0, 2)), sharded((3,), 0, (1, 2), (1, 2)))),
    "several-each": (2, (sharded((6, 2), 0, (1, 2, 1, 2), (1, 0, 0, 1)),)),
    "descending": (3, (sharded((2, 6), 1, (1, 2, 3), (2, 1, 0)), sharded((3,), 0, (1, 1, 1), (0, 1, 2)))),
    "few-owners": (5, (sharded((4, 3), 0, (2, 2), (1, 3)), sharded((5,), 0, (1,) * 5, range(5)))),
    "very-uneven": (4, (sharded((103, 1), 0, (100, 1, 1, 1), range(4)), whole((2,), 3))),
    "ten": (10, (sharded((12, 2), 0, (2, 2, *[1] * 8), range(10)),)),
    # With more members of a task, TensorFlow's all-to-all gives some what belongs to others.
    "twelve": (12, (sharded((12, 2), 0, (1,) * 12, range(12)), whole((), 10))),
}
CASES = pytest.mark.parametrize(
    ("n", "tensors", "keys"),
    [(*case, (1,)) for case in TENSORS.values()]
    + [(*TENSORS[name], (1, 2, 3)) for name in ("uneven", "very-uneven")],
    ids=[*TENSORS, "rows-in-pieces", "sums-in-pieces"],
)


def another_collective(rank, n):
    """TensorFlow runs an all-to-all only in graphs with another collective, as those of strategies are."""
    return gathered(tf.constant([rank]), group=(n, GATHER_GROUP_KEY), key=1)


@CASES
def test_owners_get_sums(n, tensors, keys):
    def member(rank):
        values = values_of(tensors, rank)
        halves = [
            half
            for value, tensor in zip(values, tensors, strict=True)
            for half in ([value] if is_whole(tensor) else np.split(value, [tensor.sizes[0]], tensor.axis))
        ]
        sums, done = reduce_scatter(
            *map(tf.constant, halves),
            tensors=tensors,
            counts=tuple(1 if is_whole(tensor) else 2 for tensor in tensors),
            rank=rank,
            order=tuple(range(n)),
            group_key=SCATTER_KEY,
            row_keys=keys,
            sum_keys=tuple(8 + key for key in keys),
            hint="auto",
            most_local=n,
        )
        return sums, done, another_collective(rank, n)

    total = [sum(parts) for parts in zip(*(values_of(tensors, rank) for rank in range(n)), strict=True)]
    for rank, (sums, *_) in enumerate(run(n, member)):
        own = parts_of(total, tensors, rank)
        assert [s.shape for s in sums] == [np.shape(t) for t in own]
        for got, expected in zip(sums, own, strict=True):
            np.testing.assert_array_equal(got, expected)


@CASES
def test_all_get_what_owners_have(n, tensors, keys):
    ranges = tuple(((0, sum(t.sizes)), *bounds(t)[1:]) for t in tensors)

    def member(rank):
        own = parts_of(values_of(tensors, rank), tensors, rank)
        return all_gather(
            *map(tf.constant, own),
            tensors=tensors,
            ranges=ranges,
            rank=rank,
            order=tuple(range(n)),
            group_key=GATHER_GROUP_KEY,
            keys=keys,
            dtype=tf.float64.as_datatype_enum,
            hint="auto",
        )

    expected = []
    for place, tensor in enumerate(tensors):
        result = np.empty(tensor.dims)
        for (start, stop), owner in zip(bounds(tensor), tensor.owners, strict=True):
            part(result, tensor, start, stop)[...] = part(
                values_of(tensors, owner)[place], tensor, start, stop
            )
        expected += [part(result, tensor, *wanted) for wanted in ranges[place]]
    for received, _ in run(n, member):
        assert [r.shape for r in received] == [np.shape(e) for e in expected]
        for got, wanted in zip(received, expected, strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_groups_may_have_their_members_in_another_order(monkeypatch):
    """The third member of four is where the second would be, as `task:10` is."""
    n, tensors = TENSORS["balanced"]
    order = (0, 2, 1)
    sent, whole_rows = {}, {}

    def all_to_all(matrix, across, *, adds):
        sent[rank] = matrix
        return tf.stack([sent[other][order.index(rank)] for other in order if other in sent])

    monkeypatch.setattr(shards, "carried", all_to_all)
    monkeypatch.setattr(shards, "gathered", lambda row, **_: tf.concat([whole_rows[r] for r in order], 0))
    for rank in range(n):
        values = [tf.constant(value) for value in values_of(tensors, rank)]
        (*sums,), _ = reduce_scatter(
            *values,
            tensors=tensors,
            counts=(1,) * len(tensors),
            rank=rank,
            order=order,
            group_key=1,
            row_keys=(1,),
            sum_keys=(9,),
            hint="auto",
            most_local=1,
        )
        whole_rows[rank] = row_of(values_of(tensors, rank), tensors, rank, n)[None]
        expected = parts_of(
            [sum(v) for v in zip(*(values_of(tensors, r) for r in range(rank + 1)), strict=True)],
            tensors,
            rank,
        )
        for got, own in zip(sums, expected, strict=True):
            np.testing.assert_array_equal(got, own)
    received, _ = all_gather(
        *parts_of(values_of(tensors, 0), tensors, 0),
        tensors=tensors,
        ranges=tuple(((0, sum(t.sizes)),) for t in tensors),
        rank=0,
        order=order,
        group_key=1,
        keys=(1,),
        dtype=tf.float64.as_datatype_enum,
        hint="auto",
    )
    for tensor, got, place in zip(tensors, received, range(len(tensors)), strict=True):
        for (start, stop), owner in zip(bounds(tensor), tensor.owners, strict=True):
            own = part(values_of(tensors, owner)[place], tensor, start, stop)
            np.testing.assert_array_equal(part(got.numpy(), tensor, start, stop), own)


@st.composite
def layouts(draw):
    """Members, and tensors whose parts they own in any order."""
    n = draw(st.integers(1, 5))
    tensors = []
    for _ in range(draw(st.integers(1, 4))):
        sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=6))
        before, after = draw(st.integers(1, 2)), draw(st.integers(1, 3))
        owners = draw(st.lists(st.integers(0, n - 1), min_size=len(sizes), max_size=len(sizes)))
        axis = 1 if len(sizes) > 1 else 0
        dims = (before, sum(sizes), after) if axis else (sum(sizes), after)
        tensors.append(sharded(dims, axis, sizes, owners))
    return n, tuple(tensors)


@settings(max_examples=60, deadline=None)
@given(layouts())
def test_rows_hold_every_part_once(case):
    n, unsorted = case
    tensors = tuple(unsorted[place] for place in in_row_order(unsorted, n))
    values = values_of(tensors, 1)
    matrix = shards._matrix([tf.constant(value) for value in values], tensors, n)
    assert matrix.shape == (n, row_length(tensors, n))
    for rank in range(n):
        np.testing.assert_array_equal(row_of(values, tensors, rank, n), matrix[rank])
        parts = itertools.chain(*shards._parts_of_row(matrix[rank], tensors, rank, n))
        for got, expected in zip(parts, parts_of(values, tensors, rank), strict=True):
            np.testing.assert_array_equal(got, expected)
    for got, value in zip(shards._wholes(matrix, tensors), values, strict=True):
        np.testing.assert_array_equal(tf.reshape(got, value.shape), value)


def row_of(values, tensors, rank, n):
    parts = [
        list(map(tf.constant, parts_of([value], [tensor], rank)))
        for value, tensor in zip(values, tensors, strict=True)
    ]
    return shards._row(parts, tensors, n, tf.float64)


def test_the_number_of_operations_does_not_grow_with_members():
    def n_operations(n):
        tensors = (
            sharded((2 * n + 1, 3), 0, (3, *[2] * (n - 1)), range(n)),
            sharded((5, n), 1, (1,) * n, range(n)),
            whole((4,), 0),
            whole((), n - 1),
        )
        with tf.Graph().as_default() as graph:
            sent = [tf.zeros(tensor.dims) for tensor in tensors]
            matrix = shards._matrix(sent, tensors, n)
            list(shards._wholes(matrix, tensors))
            return len(graph.get_operations())

    # Long constants are made by an operation of their own.
    assert n_operations(4) <= n_operations(1000) == n_operations(3000) <= n_operations(4) + 10
