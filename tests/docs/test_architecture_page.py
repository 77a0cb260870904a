"""Paths on the map of the code exist, and every package is on it, in its own words."""

import ast
import re

import pytest
from pages import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text()
ROOTS = ("harness", "strategies", "workloads", "reports")
NAMED = sorted(set(re.findall(rf"`((?:{'|'.join(ROOTS)})/[\w/]*(?:\.py)?)`", PAGE)))
DRAWN = sorted(
    set(
        re.findall(
            rf"\b((?:{'|'.join(ROOTS)})/[\w/]+(?:\.py)?)\b", " ".join(re.findall(r"\[([^\]]*)<br>", PAGE))
        )
    )
)
DECISIONS = "".join(page.read_text() for page in sorted((ROOT / "docs" / "decisions").glob("*.md")))
QUOTED = sorted(set(re.findall(r"`((?:[\w-]+/)+[\w-]+\.(?:py|yaml))`", PAGE + DECISIONS)))
ROOMS = dict(re.findall(r"^\| `([\w/]+)/` \| (.*) \|$", PAGE, re.MULTILINE))


def packages() -> dict[str, str]:
    """Folder of each package → the first sentences of its docstring."""
    inits = [init for root in ROOTS for init in (ROOT / root).rglob("__init__.py")]
    return {str(init.parent.relative_to(ROOT)): summary(init.read_text()) for init in inits}


def summary(source: str) -> str:
    docstring = ast.get_docstring(ast.parse(source)) or ""
    return docstring.split("\n\n")[0].replace("\n", " ")


@pytest.mark.parametrize("path", sorted({*NAMED, *DRAWN, *QUOTED}))
def test_every_path_exists(path: str) -> None:
    assert (ROOT / path).exists()


def test_every_package_is_listed_with_its_docstring() -> None:
    assert packages() == ROOMS
