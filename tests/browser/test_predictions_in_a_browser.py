"""The page of predictions in a real browser: drawn, filtered, within a phone's width, and silent."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser_pages import DESKTOP, PHONE, listened, unfold, violations
from playwright.sync_api import Browser, expect
from prediction_pages import page_of

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("predicted")
    path = folder / "page.html"
    path.write_text(page_of(folder / "run"), encoding="utf-8")
    return path


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_curves_and_steps_are_drawn_and_follow_the_filter(
    chromium: Browser, page_file: Path, width: int
) -> None:
    context = chromium.new_context(viewport={"width": width, "height": 900})
    log, page = listened(context, page_file)
    unfold(page)
    for figure in page.locator("figure[data-chart]").all():
        figure.scroll_into_view_if_needed()
        expect(figure.locator(".live svg")).to_be_visible()
    page.fill("#filter-words", "ps")
    expect(page.locator("#n-shown")).to_have_text("1 of 3 strategies shown")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert log == []
    # The console runs what the page may not.
    assert violations(page) == []
    context.close()
