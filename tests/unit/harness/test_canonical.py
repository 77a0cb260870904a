import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.canonical import canonical_hash, canonical_json, json_value, slug

_DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(_DATA)
def test_canonical_json_is_json_and_stable_when_read_back(data: object) -> None:
    text = canonical_json(data)
    assert canonical_json(json.loads(text, parse_constant=_refuse)) == text


@given(st.dictionaries(st.text(), st.integers(), min_size=2, max_size=5))
def test_hash_does_not_depend_on_key_order(data: dict[str, int]) -> None:
    assert canonical_hash(data) == canonical_hash(dict(reversed(data.items())))


@given(st.text())
def test_slug_is_a_safe_folder_name(text: str) -> None:
    name = slug(text)
    assert 0 < len(name) <= 48
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert name.strip("-") == name


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_become_null(value: float) -> None:
    assert json_value({"a": [value]}) == {"a": [None]}


def test_a_value_without_a_json_form_is_refused() -> None:
    with pytest.raises(TypeError, match="set has no JSON form"):
        json_value({"a": {1}})


def _refuse(token: str) -> object:
    raise AssertionError(token)
