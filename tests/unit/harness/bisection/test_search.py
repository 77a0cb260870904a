"""The search for the first bad commit, whatever lies between a good one and a bad one."""

import math

from hypothesis import given
from hypothesis import strategies as st

from harness.bisection.search import Finding, OutOfTimeError, narrowed


@given(st.data(), st.integers(2, 200))
def test_the_first_bad_one_is_among_the_suspects_and_alone_where_all_can_be_told(data, n_commits) -> None:
    first_bad = data.draw(st.integers(1, n_commits - 1))
    untold = data.draw(st.sets(st.integers(1, n_commits - 1)))
    looks: list[int] = []

    def look(index: int) -> Finding:
        looks.append(index)
        return "untold" if index in untold else "bad" if index >= first_bad else "good"

    result = narrowed(n_commits, look)
    assert first_bad in result.suspects
    assert not result.is_cut_short
    # All that lies between is untold.
    assert set(result.suspects) - {result.first_known_bad} <= untold
    assert len(set(looks)) == len(looks)
    if not untold:
        assert list(result.suspects) == [first_bad]
        assert len(looks) <= math.ceil(math.log2(n_commits - 1)) if n_commits > 2 else not looks


@given(st.integers(3, 100), st.integers(0, 6), st.data())
def test_what_is_known_when_time_is_up_is_still_said(n_commits, n_looks, data) -> None:
    first_bad = data.draw(st.integers(1, n_commits - 1))
    left = [n_looks]

    def look(index: int) -> Finding:
        if not left[0]:
            raise OutOfTimeError
        left[0] -= 1
        return "bad" if index >= first_bad else "good"

    result = narrowed(n_commits, look)
    assert first_bad in result.suspects
    assert result.is_cut_short == (len(result.suspects) > 1)
