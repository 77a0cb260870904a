"""The index of decisions lists every page once, and marks superseded ones."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "decisions"
INDEX = (FOLDER / "README.md").read_text()
PAGES = sorted(page.name for page in FOLDER.glob("0*.md"))


def test_every_page_is_listed_once() -> None:
    assert sorted(re.findall(r"\]\((0\S+\.md)\)", INDEX)) == PAGES


@pytest.mark.parametrize("name", PAGES)
def test_a_superseded_page_is_marked(name: str) -> None:
    says_so = any(line.startswith("Superseded") for line in (FOLDER / name).read_text().splitlines()[:5])
    (line,) = [line for line in INDEX.splitlines() if f"]({name})" in line]
    assert ("superseded" in line) == says_so
