import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.verification.separability import part_of_draw
from strategies.topology import Topology

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
