"""Every page: its commands and options exist, its links lead somewhere, its experiments load."""

import re
from pathlib import Path

import pytest
import yaml
from pages import DOCS, ROOT, blocks, commands, refuse_unknown_options

from harness.experiment.load import resolve

PAGES = sorted([ROOT / "README.md", *(page for page in DOCS.rglob("*.md") if not page.name.startswith("0"))])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_command_and_option_exists(page: Path) -> None:
    for command in commands(page.read_text()):
        if command.startswith("stratbench "):
            refuse_unknown_options(command.replace(" … ", " run "))


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_and_anchors_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = link.partition("#")
        if path.startswith("http"):
            continue
        target = (page.parent / path) if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_experiments_are_valid(page: Path) -> None:
    for block in blocks(page.read_text(), "yaml"):
        document = yaml.safe_load(block)
        if "jobs" not in document:
            resolve(
                {
                    "name": "x",
                    "workloads": ["wide-mlp"],
                    "strategies": ["ps"],
                    "cluster": {"workers": 5},
                    **document,
                }
            )


def test_the_site_has_every_page() -> None:
    names = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert names == {name.removeprefix("docs/") for name in NAMES if name.startswith("docs/")}
