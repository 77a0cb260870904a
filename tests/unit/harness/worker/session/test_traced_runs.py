"""Groups of bounded bytes keep order and lose nothing, and each holds as much as fits."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from harness.worker.session.traced_runs import byte_groups

LIMIT = 10


@given(st.lists(st.integers(0, 3 * LIMIT)))
def test_groups_are_as_few_as_the_bound_allows(sizes: list[int]) -> None:
    groups = list(byte_groups(sizes, lambda size: size, limit=LIMIT))
    assert [size for group in groups for size in group] == sizes
    assert all(group and (sum(group) <= LIMIT or len(group) == 1) for group in groups)
    assert all(sum(group) + following[0] > LIMIT for group, following in itertools.pairwise(groups))


def test_a_group_is_there_before_later_items_are_made() -> None:
    calls_seen = []

    def items():
        for size in (6, 6, 6):
            calls_seen.append(size)
            yield size

    next(byte_groups(items(), lambda size: size, limit=LIMIT))
    assert len(calls_seen) == 2
