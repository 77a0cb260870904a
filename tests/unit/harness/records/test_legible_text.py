"""Text of others: nothing moves a cursor or turns a sentence round, and letters of every script stay."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.records.legible_text import cut, spelt_out


@given(st.text())
def test_nothing_unseen_is_left_but_joiners(text: str) -> None:
    shown = spelt_out(text)
    assert shown.translate({0x200C: None, 0x200D: None}).isprintable()
    assert spelt_out(shown) == shown


@pytest.mark.parametrize(
    "number", [*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200B, 0x200E, 0x61C, 0xAD]
)
def test_marks_of_direction_and_characters_without_width_are_spelt_out(number: int) -> None:
    assert (
        spelt_out(f"a{chr(number)}b")
        == f"a\\{'u' if number > 0xFF else 'x'}{number:0{4 if number > 0xFF else 2}x}b"
    )


@pytest.mark.parametrize("number", [n for n in (*range(0x20), *range(0x7F, 0xA0)) if n not in range(9, 14)])
def test_controls_are_spelt_out(number: int) -> None:
    assert unicodedata.category(chr(number)) == "Cc"
    assert spelt_out(f"a{chr(number)}b") == f"a\\x{number:02x}b"


@pytest.mark.parametrize(
    "space", ["\n", "\t", "\r", "\v", "\f", "\u00a0", "\u2028", "\u2029", "\u202f", "\u3000"]
)
def test_each_space_is_a_plain_one(space: str) -> None:
    assert spelt_out(f"a{space}b") == "a b"


@pytest.mark.parametrize(
    "text",
    ["قياس الأداء", "می‌خواهم", "מדידה", "क्‍ष", "👩‍🔬 🏳️‍🌈", "naïve Größe", "ß→∞", "測定"],
    ids=["Arabic", "Persian", "Hebrew", "Hindi", "emoji", "Latin", "signs", "Chinese"],
)
def test_letters_of_every_script_stay(text: str) -> None:
    assert spelt_out(text) == text


def test_what_no_file_can_hold_is_spelt_out() -> None:
    assert spelt_out("\ud800 \U000e0041") == "\\ud800 \\U000e0041"


def test_a_long_text_is_cut_in_its_middle() -> None:
    assert cut("a" * 50 + "b" * 50, most=100) == "a" * 50 + "b" * 50
    assert cut("a" * 60 + "b" * 1_060, most=100) == f"{'a' * 50} … 1,020 characters more … {'b' * 50}"
