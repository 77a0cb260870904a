"""The reference of strategies is that of the registry, and every entry of the registry has its texts."""

import re

from strategies.planning.docs_page import PAGE, page
from strategies.planning.docs_texts import KNOBS
from strategies.planning.docs_texts import STRATEGIES as TEXTS
from strategies.planning.registry import STRATEGIES

WHERE = "strategies/planning/docs_texts.py"


def test_every_strategy_has_its_text() -> None:
    names = {strategy.name for strategy in STRATEGIES}
    assert not names - set(TEXTS), f"{WHERE}: STRATEGIES needs a Text for each of these"
    assert not set(TEXTS) - names, f"{WHERE}: the registry has no such strategies, drop their texts"


def test_every_knob_has_its_text() -> None:
    names = {param.name for strategy in STRATEGIES for param in strategy.params}
    assert not names - set(KNOBS), f"{WHERE}: KNOBS needs a line for each of these"
    assert not set(KNOBS) - names, f"{WHERE}: no strategy has such knobs, drop their lines"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == f"{page()}\n", "docs/strategies.md differs from the registry: run `make docs`"


def test_links_inside_the_page_lead_somewhere() -> None:
    text = PAGE.read_text()
    headings = {h.lower() for h in re.findall(r"^## (.*)$", text, re.MULTILINE)}
    assert set(re.findall(r"\]\(#([^)]*)\)", text)) <= headings
