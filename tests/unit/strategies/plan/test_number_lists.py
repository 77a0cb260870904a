"""Lists of numbers come back from JSON as they were, and long ones that follow a rule are short there."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from strategies.plan.number_lists import LONG, MOST_NUMBERS, Numbers, Repeated, in_words, repetitions_of

LISTS = TypeAdapter(Numbers)
REPETITIONS = st.builds(
    lambda values, count, step: [*Repeated(tuple(values), count, step).numbers()],
    st.lists(st.integers(-9, 9), min_size=1, max_size=3),
    st.integers(1, 20),
    st.integers(-2, 2),
)


@given(st.lists(REPETITIONS, max_size=5).map(lambda pieces: tuple(chain.from_iterable(pieces))))
def test_numbers_survive_json(numbers):
    assert LISTS.validate_json(LISTS.dump_json(numbers)) == numbers
    assert tuple(n for repeated in repetitions_of(numbers) for n in repeated.numbers()) == numbers
    assert len(LISTS.dump_python(numbers, mode="json")) <= len(numbers)


def test_short_lists_stay_as_they_are():
    for numbers in ((), (1, 1), (7,) * LONG):
        assert LISTS.dump_python(numbers, mode="json") == list(numbers)
    # In Python they are tuples of all numbers.
    assert LISTS.dump_python((7,) * 99) == (7,) * 99


@pytest.mark.parametrize(
    ("numbers", "entries", "text"),
    [
        ((1,) * 4096, [{"repeat": 1, "times": 4096}], "4096 x 1"),
        (tuple(range(4096)), [{"repeat": 0, "times": 4096, "step": 1}], "0 to 4095"),
        ((3, *(2,) * 40), [3, {"repeat": 2, "times": 40}], "3, 40 x 2"),
        ((1, 2) * 20, [{"repeat": [1, 2], "times": 20}], "20 x (1, 2)"),
        (
            tuple(n // 2 for n in range(40)),
            [{"repeat": [0, 0], "times": 20, "step": 1}],
            "(0, 0) to (19, 19)",
        ),
        (tuple(range(40, 0, -2)), [{"repeat": 40, "times": 20, "step": -2}], "40 to 2 by -2"),
    ],
    ids=str,
)
def test_numbers_that_follow_a_rule_are_one_entry(numbers, entries, text):
    assert LISTS.dump_python(numbers, mode="json") == entries
    assert in_words(numbers) == text


@pytest.mark.parametrize(
    "item",
    [
        {"repeat": 1},
        {"repeat": 1, "times": 0},
        {"repeat": 1, "times": True},
        {"repeat": 1, "times": MOST_NUMBERS + 1},
        {"repeat": 1.5, "times": 2},
        {"repeat": [], "times": 2},
        {"repeat": "1", "times": 2},
        {"repeat": 1, "times": 2, "by": 1},
        "one",
        None,
    ],
    ids=str,
)
def test_whatever_is_no_repetition_is_named(item):
    with pytest.raises(ValidationError) as raised:
        LISTS.validate_python([1, item])
    assert raised.value.errors()[0]["loc"] == (1,)
