"""Text of others: nothing moves a cursor or turns a sentence round, and letters of every script stay."""

import re
import shlex
import unicodedata
from collections.abc import Iterator
from re._constants import MAXREPEAT  # type: ignore[import-not-found]
from re._parser import SubPattern, parse  # type: ignore[import-not-found]

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.records import safe_text
from harness.records.safe_text import REDACTED, cut, printable, redacted, redacted_command, redacted_document


@given(st.text())
def test_nothing_unseen_is_left_but_joiners(text: str) -> None:
    output = printable(text)
    assert output.translate({0x200C: None, 0x200D: None}).isprintable()
    assert printable(output) == output


@pytest.mark.parametrize(
    "number", [*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200B, 0x200E, 0x61C, 0xAD]
)
def test_marks_of_direction_and_characters_without_width_are_spelt_out(number: int) -> None:
    assert (
        printable(f"a{chr(number)}b")
        == f"a\\{'u' if number > 0xFF else 'x'}{number:0{4 if number > 0xFF else 2}x}b"
    )


@pytest.mark.parametrize("number", [n for n in (*range(0x20), *range(0x7F, 0xA0)) if n not in range(9, 14)])
def test_controls_are_spelt_out(number: int) -> None:
    assert unicodedata.category(chr(number)) == "Cc"
    assert printable(f"a{chr(number)}b") == f"a\\x{number:02x}b"


@pytest.mark.parametrize(
    "space", ["\n", "\t", "\r", "\v", "\f", "\u00a0", "\u2028", "\u2029", "\u202f", "\u3000"]
)
def test_each_space_is_a_plain_one(space: str) -> None:
    assert printable(f"a{space}b") == "a b"


@pytest.mark.parametrize(
    "text",
    ["قياس الأداء", "می‌خواهم", "מדידה", "क्‍ष", "👩‍🔬 🏳️‍🌈", "naïve Größe", "ß→∞", "測定"],
    ids=["Arabic", "Persian", "Hebrew", "Hindi", "emoji", "Latin", "signs", "Chinese"],
)
def test_letters_of_every_script_stay(text: str) -> None:
    assert printable(text) == text


def test_what_no_file_can_hold_is_spelt_out() -> None:
    assert printable("\ud800 \U000e0041") == "\\ud800 \\U000e0041"


def test_a_long_text_is_cut_in_its_middle() -> None:
    assert cut("a" * 50 + "b" * 50, most=100) == "a" * 50 + "b" * 50
    assert cut("a" * 60 + "b" * 1_060, most=100) == f"{'a' * 50} … 1,020 characters more … {'b' * 50}"


TOKEN = "ghp_" + "a1B2" * 9


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("https://bob:hunter2@example.org/a", f"https://{REDACTED}@example.org/a"),
        ("https://example.org/a?token=hunter2&page=2", f"https://example.org/a?token={REDACTED}&page=2"),
        ("workload.api_key=hunter2", f"workload.api_key={REDACTED}"),
        ("MY_PASSWORD: 'hunter2 and more' next", f"MY_PASSWORD: {REDACTED} next"),
        ('{"client-secret": "hunter2", "n": 1}', f'{{"client-secret": {REDACTED}, "n": 1}}'),
        ("Authorization: Bearer hunter2hunter2", f"Authorization: {REDACTED}"),
        ("sent bearer hunter2hunter2", f"sent bearer {REDACTED}"),
        (f"clone with {TOKEN} now", f"clone with {REDACTED} now"),
        ("AKIAHUNTER2HUNTER2AB", REDACTED),
        ("-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----\nx", f"{REDACTED}\nx"),
        ("-----BEGIN PRIVATE KEY-----\nhunter2", REDACTED),
        ("run --token hunter2secret now", f"run --token {REDACTED} now"),
        ("run --auth.api-key 'hunter2 secret' -n 2", f"run --auth.api-key {REDACTED} -n 2"),
        ('["--token", "hunter2", "-n"]', f'["--token", {REDACTED}, "-n"]'),
        ('{"token": ["hunter2", "hunter3"], "n": 1}', f'{{"token": {REDACTED}, "n": 1}}'),
        ('token="hunter2 without an end', f"token={REDACTED}"),
        ("https://u:p@ss@host/x", f"https://{REDACTED}@host/x"),
        ("got eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl now", f"got {REDACTED} now"),
        ("got eyJhbGciOiJI.eyJzdWIiOiIx now", f"got {REDACTED} now"),
    ],
)
def test_a_secret_is_left_out(text: str, output: str) -> None:
    assert redacted(text) == output
    assert redacted(output) == output


@pytest.mark.parametrize(
    "text",
    [
        "n_tokens=64, tokens: 12",
        "cluster.token_file=/run/token",
        "strategies=[ps, all-reduce:chunk_size=16]",
        "https://example.org/a@b",
        "sk-learn 1.5",
        "step 12: loss 0.5",
        "run --token-file /run/token --n-tokens 3",
        "run --token --seed 7",
        "eyJhbGciOiJI alone",
    ],
)
def test_what_is_none_stays(text: str) -> None:
    assert redacted(text) == text


def test_a_document_is_searched_by_names_too() -> None:
    document = {
        "params": {"api_key": "hunter2", "n": 3},
        "urls": ["ftp://a:hunter2@b"],
        "tokens": ["x"],
        "pwd": "",
    }
    assert redacted_document(document) == {
        "params": {"api_key": REDACTED, "n": 3},
        "urls": [f"ftp://{REDACTED}@b"],
        "tokens": ["x"],
        "pwd": "",
    }


def test_a_command_can_be_given_to_a_shell_again() -> None:
    words = [
        "stratbench",
        "run",
        "my file.yaml",
        "--set",
        "workload.password=hunter2",
        "--auth-token",
        "hunter2",
    ]
    command = redacted_command(words)
    assert "hunter2" not in command
    assert shlex.split(command)[:4] == words[:4]
    assert redacted_command(words[:3]) == "stratbench run 'my file.yaml'"


def test_words_of_a_command_in_a_document_are_named_by_the_option_before_them() -> None:
    document = {"argv": ["run", "--token", "hunter2", "x", "--password", "--seed", "7"]}
    words = ["run", "--token", REDACTED, "x", "--password", "--seed", "7"]
    assert redacted_document(document) == {"argv": words}


def least_widths_after_endless(sequence: SubPattern, after: int = 0) -> Iterator[int]:
    """For each repetition without an end, how many characters must follow it at least."""
    items = list(sequence)
    for i, (operation, argument) in enumerate(items):
        rest = SubPattern(sequence.state, items[i + 1 :]).getwidth()[0] + after
        if str(operation) in ("MAX_REPEAT", "MIN_REPEAT"):
            _, most, repeated = argument
            if most == MAXREPEAT:
                yield rest
            yield from least_widths_after_endless(repeated, rest)
        elif str(operation) == "SUBPATTERN":
            yield from least_widths_after_endless(argument[-1], rest)
        elif str(operation) == "BRANCH":
            for branch in argument[1]:
                yield from least_widths_after_endless(branch, rest)


PATTERNS = [value for value in vars(safe_text).values() if isinstance(value, re.Pattern)]


@pytest.mark.parametrize("pattern", PATTERNS, ids=[f"{pattern.pattern[:20]!a}" for pattern in PATTERNS])
def test_a_search_takes_no_longer_than_text_is_long(pattern: re.Pattern[str]) -> None:
    """An endless repetition is searched once, because nothing can fail where it begins."""
    assert set(least_widths_after_endless(parse(pattern.pattern, pattern.flags))) <= {0}


def test_the_rule_finds_what_is_searched_again_from_each_beginning() -> None:
    assert list(least_widths_after_endless(parse(r"\beyJ[a-z-]{8,}\.[a-z]+"))) == [2, 0]
    assert list(least_widths_after_endless(parse(r"(?:a(?:b+|c))d?e"))) == [1]
