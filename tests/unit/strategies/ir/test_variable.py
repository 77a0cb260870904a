"""State with which replicas continue from a checkpoint of other replicas."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.ir.variable import Fresh

RANKS = st.sets(st.integers(0, 6), min_size=1)


def fresh(inherits: str, owners: tuple[int, ...] = (0,), kind: str = "zeros") -> Fresh:
    return Fresh(kind=kind, dims=(2,), dtype="double", seed=5, inherits=inherits, owners=owners)


@given(before=RANKS, after=RANKS, seed=st.integers(0, 100))
def test_what_is_owed_is_shared_out_without_loss(before, after, seed):
    random = np.random.default_rng(seed)
    saved = {rank: random.integers(-9, 9, 2).astype(float) for rank in before}
    owners = tuple(sorted(after))
    per_rank = {rank: fresh("share", owners).inherited(rank, saved) for rank in owners}
    np.testing.assert_array_equal(sum(per_rank.values()), sum(saved.values()))
    for rank in set(owners[1:]) & before:
        np.testing.assert_array_equal(per_rank[rank], saved[rank])


@given(before=RANKS, after=RANKS)
def test_what_all_must_have_alike_is_the_first_one_s(before, after):
    saved = {rank: np.full(2, float(rank)) for rank in before}
    for rank in after:
        np.testing.assert_array_equal(fresh("first").inherited(rank, saved), saved[min(before)])


@pytest.mark.parametrize("kind", ["zeros", "normal", "seed"])
@pytest.mark.parametrize("inherits", ["own", "first", "share"])
def test_what_nobody_saved_begins_anew(inherits, kind):
    initial = fresh(inherits, kind=kind)
    np.testing.assert_array_equal(initial.inherited(0, {}), initial.value())


def test_a_replica_goes_on_with_its_own_or_begins_anew():
    result, saved = fresh("own", kind="normal"), {1: np.ones(2)}
    np.testing.assert_array_equal(result.inherited(1, saved), [1.0, 1.0])
    np.testing.assert_array_equal(result.inherited(2, saved), result.value())
    assert fresh("own").inherited(None, {0: np.ones(2, np.float32)}).dtype == np.float64
