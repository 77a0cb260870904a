"""Style of names and docstrings: nouns and verbs."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("harness", "reports", "strategies", "tests", "workloads")
QUESTIONS = frozenset({"what", "whether", "which", "where", "how", "who", "whose", "as", "of", "by"})
"""Words that begin no docstring."""
BEGINS_NO_ENTRY = QUESTIONS | {"from", "in", "when"}
"""Words that begin no entry."""
SECTION = re.compile(r"^(?:Args|Attributes):\n((?: .*(?:\n|$)|\n)*)", re.MULTILINE)
ENTRY = re.compile(r"(?:^ {4}|(?<=[.;]) )([\w*`, ]+): (\w+)", re.MULTILINE)
"""Entry of a section, on a line of its own or after another one; its name and first word."""
PARTICIPLES = frozenset(
    {"asked", "came", "each", "found", "given", "gone", "held", "kept", "made", "said", "shown", "taken"}
    | {"brought", "handed", "heard", "hears", "mates", "owing", "told"}
)
"""Names that say nothing about the value."""


@cache
def trees(room: str) -> tuple[tuple[str, ast.Module], ...]:
    """Path and syntax tree of each module."""
    paths = sorted((ROOT / room).rglob("*.py"))
    return tuple((str(path.relative_to(ROOT)), ast.parse(path.read_text())) for path in paths)


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield getattr(node, "lineno", 1), ast.get_docstring(node) or ""


def first_words(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and first word of each docstring."""
    for line, text in docstrings(tree):
        if words := text.split():
            yield line, words[0].strip(".,:;`").lower()


def entries(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Line of the docstring, name and first word of each entry of `Args` and `Attributes`."""
    for line, text in docstrings(tree):
        for section in SECTION.findall(text):
            for name, word in ENTRY.findall(section):
                yield line, name, word


def locals_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of each assigned variable and parameter."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id


@pytest.mark.parametrize("room", ROOMS)
def test_docstrings_begin_with_a_noun_or_a_verb(room: str) -> None:
    wrong = [f"{p}:{n} {w}" for p, tree in trees(room) for n, w in first_words(tree) if w in QUESTIONS]
    assert not wrong


@pytest.mark.parametrize("room", ROOMS)
def test_names_say_what_a_value_is(room: str) -> None:
    wrong = [f"{p}:{n} {w}" for p, tree in trees(room) for n, w in locals_of(tree) if w in PARTICIPLES]
    assert not wrong


@pytest.mark.parametrize("room", ROOMS)
def test_entries_begin_with_a_noun(room: str) -> None:
    words = ((p, n, name, w) for p, tree in trees(room) for n, name, w in entries(tree))
    wrong = [f"{p}:{n} {name}: {w}" for p, n, name, w in words if w in BEGINS_NO_ENTRY]
    assert not wrong
