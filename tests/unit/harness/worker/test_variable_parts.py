"""Cutting a value into parts and joining them is the identity."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from harness.worker.variable_parts import joined, of_part
from strategies.ir.variable import Cut, Part


@given(
    arrays(np.int64, st.tuples(*[st.integers(2, 6)] * 3), elements=st.integers(0, 99)),
    st.integers(0, 2),
    st.data(),
)
def test_parts_joined_in_any_order_are_the_whole(whole, axis, data):
    length = whole.shape[axis]
    ends = sorted({*data.draw(st.sets(st.integers(1, length - 1), min_size=1)), length})
    starts = [0, *ends[:-1]]
    cut = Cut(axis=axis, sizes=tuple(b - a for a, b in zip(starts, ends, strict=True)))
    assert cut.starts == tuple(starts)
    parts = [
        Part(variable="v", index=k % 2, axis=axis, start=a, stop=b)  # numbers of two workers
        for k, (a, b) in enumerate(zip(starts, ends, strict=True))
    ]
    values = [(part, of_part(whole, part)) for part in parts]
    assert [v.shape for _, v in values] == [cut.shape(whole.shape, k) for k in range(cut.n)]
    np.testing.assert_array_equal(joined(data.draw(st.permutations(values))), whole)


def test_a_whole_value_is_itself():
    whole = np.arange(3)
    assert joined([(None, of_part(whole, None))]) is whole
