from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.errors import StrategyError
from strategies.passes.collectives import members
from strategies.passes.collectives.members import GROUP_KEY, ROWS_PER_RANGE, instance_keys, key_ranges

NAMES = st.sets(st.text(min_size=1, max_size=12), max_size=60)


@given(NAMES, st.randoms(use_true_random=False))
def test_keys_are_unique_and_do_not_depend_on_order(names, random):
    shuffled = sorted(names)
    random.shuffle(shuffled)
    keys = instance_keys(shuffled)
    assert keys == instance_keys(iter(sorted(names)))
    assert set(keys) == names
    assert len(set(keys.values())) == len(names)
    assert all(0 < key < 1 << 31 for key in keys.values())


@given(NAMES, NAMES)
def test_ranges_are_disjoint_from_each_other_and_from_keys_of_fixed_shape(fixed, changing):
    starts = sorted(key_ranges(changing).values())
    assert all(b - a >= ROWS_PER_RANGE for a, b in pairwise(starts))
    assert all(start + ROWS_PER_RANGE <= 1 << 31 for start in starts)
    assert max(instance_keys(fixed).values(), default=0) < min(starts, default=1 << 31)


def test_a_name_keeps_its_key_when_others_that_do_not_collide_join():
    assert instance_keys(["a", "b"])["a"] == instance_keys(["a"])["a"]
    assert GROUP_KEY > 0


def test_names_of_equal_hash_get_different_keys(monkeypatch):
    monkeypatch.setattr(members.zlib, "crc32", lambda data: 7)
    assert instance_keys(["b", "a", "c"]) == {"a": 8, "b": 9, "c": 10}


def test_more_names_than_ranges():
    with pytest.raises(StrategyError, match="there are 511 keys of its kind, got more collectives; put some"):
        key_ranges(f"name {i}" for i in range(600))
    assert len(key_ranges(f"name {i}" for i in range(511))) == 511
