"""Taking values apart and joining them loses nothing, for ids in any order and repeated."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from strategies.numerics.parts import join_parts, split_ids, split_parts, split_rows, stitch_rows

STARTS = (0, 3, 4)
LENGTH = 9
IDS = st.lists(st.integers(0, LENGTH - 1), max_size=12)


def run(function):
    with tf.Graph().as_default():
        result = function()
        with tf.compat.v1.Session() as session:
            return session.run(result)


@settings(max_examples=15)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=4), st.integers(0, 1))
def test_split_then_join_is_the_identity(sizes, axis):
    shape = [2, 2]
    shape[axis] = sum(sizes)
    whole = np.arange(np.prod(shape)).reshape(shape)
    same = run(lambda: join_parts(*split_parts(tf.constant(whole), axis=axis, sizes=tuple(sizes)), axis=axis))
    np.testing.assert_array_equal(same, whole)


@settings(max_examples=25)
@given(IDS)
def test_lookups_in_parts_are_lookups_in_the_whole(ids):
    table = np.arange(LENGTH * 2).reshape(LENGTH, 2)

    def looked_up():
        wanted = tf.constant(ids, tf.int32)
        pieces = split_ids(wanted, starts=STARTS)
        tables = np.split(table, STARTS[1:])
        rows = [tf.gather(tf.constant(t), local) for t, local in zip(tables, pieces[:3], strict=True)]
        return stitch_rows(wanted, *pieces[3:], *rows)

    np.testing.assert_array_equal(run(looked_up), table[np.array(ids, int)].reshape(-1, 2))


@settings(max_examples=25)
@given(IDS)
def test_rows_of_parts_are_all_rows_at_their_ids(ids):
    rows = np.arange(len(ids) * 2, dtype=float).reshape(-1, 2)

    def scattered():
        pieces = split_rows(tf.constant(rows), tf.constant(ids, tf.int64), starts=STARTS)
        lengths = np.diff([*STARTS, LENGTH])
        dense = [
            tf.math.unsorted_segment_sum(r, i, n)
            for r, i, n in zip(pieces[:3], pieces[3:], lengths, strict=True)
        ]
        return tf.concat(dense, 0)

    whole = np.zeros((LENGTH, 2))
    np.add.at(whole, np.array(ids, int), rows)
    np.testing.assert_allclose(run(scattered), whole)


@pytest.mark.parametrize("wrong", [-1, LENGTH])
def test_an_id_outside_of_the_table_reaches_a_part_that_refuses_it(wrong):
    process = run(lambda: split_ids(tf.constant([wrong]), starts=STARTS))
    sizes = np.diff([*STARTS, LENGTH])
    beyond = [i for local, n in zip(process[:3], sizes, strict=True) for i in local if not 0 <= i < n]
    assert len(beyond) == 1
