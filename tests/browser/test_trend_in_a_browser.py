"""The trend page in a real browser: what a reader sees and can do with it, and that it asks for nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser_pages import (
    DESKTOP,
    SURROUNDINGS,
    fit_and_be_read,
    hold_saved_files,
    listened,
    refuse_other_scripts,
    unfold,
)
from playwright.sync_api import Browser, Locator, Page, expect
from synthetic_run import SCRIPT
from trend_history import METRICS, STRATEGIES, page_of, write_history

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def trend(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = write_history(tmp_path_factory.mktemp("trend"))
    path = store / "trend.html"
    path.write_text(page_of(store), encoding="utf-8")
    return path


@pytest.fixture
def page(chromium: Browser, trend: Path) -> Iterator[Page]:
    """The page on a desktop, all parts open; whatever it logs or asks for fails the test."""
    context = chromium.new_context(viewport={"width": DESKTOP, "height": 900})
    log, opened = listened(context, trend)
    unfold(opened)
    yield opened
    context.close()
    assert log == []


def first_chart(page: Page) -> Locator:
    figure = page.locator("figure[data-chart]").first
    figure.scroll_into_view_if_needed()
    return figure


def rows(page: Page) -> list[str]:
    """Keys of the visible rows of the table of all series."""
    visible = page.locator("table[data-table=series] tbody tr:visible").all()
    return [str(row.get_attribute("data-key")) for row in visible]


def test_all_charts_are_drawn_anew_and_names_stay_text(page: Page) -> None:
    figures = page.locator("figure[data-chart]").all()
    assert len(figures) > len(METRICS) * 2
    for figure in figures:
        figure.scroll_into_view_if_needed()
        expect(figure).to_have_class(re.compile("is-live"))
        expect(figure.locator(".live svg")).to_be_visible()
    # A script that ran would have put its marker into the title.
    assert page.title().startswith(f"stratbench: {SCRIPT}, night 2026-11-26")
    assert SCRIPT in page.inner_text("body")
    assert page.locator("img").count() == 0


def test_only_the_most_urgent_chart_is_open(chromium: Browser, trend: Path) -> None:
    context = chromium.new_context(viewport={"width": DESKTOP, "height": 900})
    _, page = listened(context, trend)
    assert page.locator("figure:visible").count() == 1
    page.locator("#place-0 > summary").click()
    assert page.locator("#place-0 figure:visible").count() == 1 + len(METRICS)
    context.close()


def test_no_other_script_runs(chromium: Browser, trend: Path) -> None:
    refuse_other_scripts(chromium, trend)


@pytest.mark.parametrize(("width", "scheme", "scripts"), SURROUNDINGS)
def test_it_fits_every_page_and_everybody_can_read_it(
    chromium: Browser, trend: Path, width: int, scheme: str, scripts: bool
) -> None:
    fit_and_be_read(chromium, trend, first_chart, width, scheme, scripts)


def test_series_are_filtered_by_name_and_state(page: Page) -> None:
    everything = rows(page)
    assert len(everything) == 2 * len(STRATEGIES) * len(METRICS)
    page.get_by_role("searchbox").fill("all-reduce on digits-cnn")
    assert rows(page) == [key for key in everything if key.startswith("all-reduce on digits-cnn")]
    expect(page.locator("#n-shown")).to_have_text(f"{len(METRICS)} of {len(everything)} series shown")
    figure = first_chart(page)
    events = figure.locator(".live svg text", has_text="since ")
    # One line of two is left, and its change with it.
    expect(events).to_have_count(1)
    page.get_by_role("searchbox").fill("")
    page.get_by_label("in state").select_option("regressed")
    assert rows(page) == everything[:2]
    page.get_by_role("searchbox").fill("no such series")
    expect(figure.locator(".nothing")).to_be_visible()
    page.get_by_role("searchbox").fill("")
    page.get_by_label("in state").select_option("")
    assert rows(page) == everything


def test_a_change_goes_with_its_line(page: Page) -> None:
    figure = first_chart(page)
    strokes = figure.locator(".live svg path[stroke-dasharray]")
    expect(figure.locator(".live svg")).to_be_visible()
    n_before = strokes.count()
    page.get_by_role("searchbox").fill("ps on digits-cnn")
    expect(strokes).to_have_count(n_before - 1)


def test_a_chart_is_saved(page: Page) -> None:
    hold_saved_files(page, first_chart(page), ["all-reduce, 0.85", "since "])


def test_the_table_is_sorted_by_change(page: Page) -> None:
    page.locator("table[data-table=series]").get_by_role("button", name="change").click()
    changes = page.locator("table[data-table=series] tbody td:nth-child(6)").all()
    values = [change.get_attribute("data-v") for change in changes]
    numbers = [float(value) for value in values if value is not None]
    assert numbers == sorted(numbers)
    # What has not changed comes last.
    assert values == [*values[: len(numbers)], *[None] * (len(values) - len(numbers))]
    assert len(numbers) == 3


def test_a_chart_tells_what_is_pointed_at(page: Page) -> None:
    figure = first_chart(page)
    picture = figure.locator(".live")
    expect(picture.locator("svg")).to_be_visible()
    box = picture.locator("svg path[transform][fill^=var]").last.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(picture).to_contain_text(re.compile(r"all-reduce, 0.85\d×: -1[2-8].* % at 2026-\d\d-\d\d"))
