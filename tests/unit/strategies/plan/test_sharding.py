"""Exchanges of tensors in parts: bounds on their bytes, whoever owns which part."""

from hypothesis import given
from hypothesis import strategies as st

from strategies.plan.sharding import Run, ShardedTensor, exchange_of, in_row_order, row_length


def parts(sizes, owners, *, inner=1):
    return ShardedTensor(dims=(sum(sizes), inner), axis=0, sizes=tuple(sizes), owners=tuple(owners))


@st.composite
def buckets(draw):
    n = draw(st.integers(2, 9))
    tensors = []
    for _ in range(draw(st.integers(1, 6))):
        sizes = draw(st.lists(st.integers(1, 50), min_size=1, max_size=2 * n))
        owners = draw(st.lists(st.integers(0, n - 1), min_size=len(sizes), max_size=len(sizes)))
        if draw(st.booleans()):
            owners = sorted(set(owners))
        tensors.append(parts(sizes[: len(owners)], owners, inner=draw(st.integers(1, 4))))
    return n, tensors


@given(buckets())
def test_padding_at_most_doubles_a_reduce_scatter(bucket):
    n, tensors = bucket
    in_rows, in_sums = exchange_of(tensors, n)
    assert sorted([*in_rows, *in_sums]) == list(range(len(tensors)))
    rows = [tensors[place] for place in in_rows]
    assert n * row_length(rows, n) <= 2 * sum(tensor.n_elements for tensor in rows)


@given(buckets())
def test_rows_are_no_longer_than_columns_and_the_longest_share(bucket):
    n, tensors = bucket
    shares = [0] * n
    for tensor in tensors:
        for size, owner in zip(tensor.sizes, tensor.owners, strict=True):
            shares[owner] += size * tensor.inner
    columns = sum(tensor.width for tensor in tensors if tensor.is_in_columns(n))
    assert max(shares) <= row_length(tensors, n) <= columns + max(shares)


def test_columns_come_first_in_rows():
    tensors = [parts([3], [1]), parts([2, 2], [0, 1]), parts([2, 2], [1, 0]), parts([1, 2], [0, 1])]
    assert in_row_order(tensors, 2) == [1, 3, 0, 2]


def test_parts_of_few_members_are_no_columns_of_many():
    assert parts([2, 2], [0, 3]).is_in_columns(4)
    assert not parts([2, 2], [0, 3]).is_in_columns(5)
    assert not parts([1000, 1, 1, 1], range(4)).is_in_columns(4)


def test_whole_tensors_are_summed_if_one_member_owns_more_than_its_double_share():
    wholes = [parts([4], [0]), parts([4], [1])]
    assert exchange_of(wholes, 4) == ([0, 1], [])
    assert exchange_of(wholes, 5) == ([], [0, 1])
    assert exchange_of([*wholes, parts([1] * 5, range(5))], 5) == ([2], [0, 1])


def test_runs_are_equal_parts_of_members_in_a_row():
    tensor = parts([3, 2, 2, 2, 1], [0, 1, 2, 4, 5])
    assert tensor.runs == [Run(0, 0, 1, 3), Run(3, 1, 2, 2), Run(7, 4, 1, 2), Run(9, 5, 1, 1)]
    assert [run.stop for run in tensor.runs] == [3, 7, 9, 10]
