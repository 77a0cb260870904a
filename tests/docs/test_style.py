"""Style of names and docstrings: nouns and verbs."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("harness", "strategies", "tests", "workloads")
OPEN = ("harness/cli/", "harness/measure/prometheus.py", "harness/pytest_plugin/")
"""Files whose names are still to be changed."""
QUESTIONS = frozenset({"what", "whether", "which", "where", "how", "who", "whose", "as", "of", "by"})
"""Words that begin no docstring."""
PARTICIPLES = frozenset(
    {"asked", "came", "each", "found", "given", "gone", "held", "kept", "made", "said", "shown", "taken"}
    | {"told"}
)
"""Names that say nothing about the value."""


@cache
def trees(room: str) -> tuple[tuple[str, ast.Module], ...]:
    """Path and syntax tree of each module."""
    paths = sorted((ROOT / room).rglob("*.py"))
    return tuple((str(path.relative_to(ROOT)), ast.parse(path.read_text())) for path in paths)


def first_words(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and first word of each docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            words = (ast.get_docstring(node) or "").split()
            if words:
                yield getattr(node, "lineno", 1), words[0].strip(".,:;`").lower()


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
    wrong = [place for place in wrong if not place.startswith(OPEN)]
    assert not wrong
