"""The HTML report in a real browser: what a reader sees and can do with it, and that it asks for nothing."""

from __future__ import annotations

import json
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
from synthetic_run import NONE, SCRIPT, SINGLE, Case, full_cases, write_run

import reports

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_run(tmp_path_factory.mktemp("browser") / "run", full_cases())
    path = folder.parent / "report.html"
    path.write_text(reports.render([folder], "html"), encoding="utf-8")
    return path


@pytest.fixture
def page(chromium: Browser, report: Path) -> Iterator[Page]:
    """The report on a desktop, all parts open; whatever it logs or asks for fails the test."""
    context = chromium.new_context(viewport={"width": DESKTOP, "height": 900})
    log, opened = listened(context, report)
    unfold(opened)
    yield opened
    context.close()
    assert log == []


def section_of(page: Page, workload: str) -> Locator:
    heading = page.get_by_role("heading", name=workload, exact=True, level=2)
    return page.locator("section.comparison", has=heading)


def ranking_of(page: Page) -> Locator:
    return section_of(page, "wide-mlp").locator("figure[data-chart$=-ranking]")


def strategies_of(table: Locator) -> list[str]:
    """Names of the visible rows, from top to bottom."""
    return [str(row.get_attribute("data-key")) for row in table.locator("tbody tr:visible").all()]


def test_names_stay_text_and_nothing_is_fetched(page: Page) -> None:
    # All charts are drawn anew once they come into sight, hostile names among them.
    for figure in page.locator("figure[data-chart]").all():
        figure.scroll_into_view_if_needed()
        expect(figure).to_have_class(re.compile("is-live"))
        expect(figure.locator(".live svg")).to_be_visible()
    # A script that ran would have put its marker into the title.
    assert page.title() == "stratbench: synthetic"
    assert SCRIPT in page.inner_text("body")
    assert page.locator("img").count() == 0
    assert json.loads(page.locator("#stratbench-data").text_content() or "")["schema"] == 4


def test_a_quickstart_s_page_is_short_and_small_and_draws_charts_once_opened(
    chromium: Browser, tmp_path: Path
) -> None:
    """Three workloads of five strategies, as the quickstart has them."""
    names = ("single", "none", "ps", "all-reduce", "sharded-update")
    kinds = {"single": SINGLE, "none": NONE}
    cases = [
        Case(workload=workload, **kinds.get(name, {"strategy": name}))
        for workload in ("digits-cnn", "wide-mlp", "dlrm")
        for name in names
    ]
    run = write_run(tmp_path / "run", cases)
    path = tmp_path / "report.html"
    path.write_text(reports.render([run], "html"), encoding="utf-8")
    assert path.stat().st_size < 1_000_000
    context = chromium.new_context(viewport={"width": DESKTOP, "height": 900})
    log, page = listened(context, path)
    expect(ranking_of(page).locator(".live svg")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollHeight") < 2500
    traffic = section_of(page, "dlrm").locator("figure[data-chart$=-bytes]")
    expect(traffic.locator(".live")).to_have_count(0)
    traffic_link = f"#{section_of(page, 'dlrm').get_attribute('id')}-traffic"
    # The index shows the parts of the comparison in view, and its links open the parts that they lead to.
    index = page.get_by_role("navigation")
    index.get_by_role("link", name="dlrm").press("Enter")
    expect(index.get_by_role("link", name="Traffic", exact=True)).to_have_attribute("href", traffic_link)
    index.get_by_role("link", name="Traffic", exact=True).press("Enter")
    expect(traffic.locator(".live svg")).to_be_visible()
    context.close()
    assert log == []


def test_no_other_script_runs(chromium: Browser, report: Path) -> None:
    refuse_other_scripts(chromium, report)


@pytest.mark.parametrize(("width", "scheme", "scripts"), SURROUNDINGS)
def test_it_fits_every_page_and_everybody_can_read_it(
    chromium: Browser, report: Path, width: int, scheme: str, scripts: bool
) -> None:
    fit_and_be_read(chromium, report, ranking_of, width, scheme, scripts)


def test_strategies_are_filtered_by_name_and_class(page: Page) -> None:
    section = section_of(page, "wide-mlp")
    table = section.locator("table[data-table=speed]")
    everybody = strategies_of(table)
    page.get_by_role("searchbox").fill("all-reduce, sharded")
    assert strategies_of(table) == [name for name in everybody if "all-reduce" in name or "sharded" in name]
    figure = section.locator("figure[data-chart$=-ranking]")
    figure.scroll_into_view_if_needed()
    expect(figure.locator(".live svg")).not_to_contain_text("ps-load-balancing")
    expect(figure.locator(".live svg")).to_contain_text("all-reduce")
    expect(page.locator("#n-shown")).to_contain_text("strategies shown")
    page.get_by_role("searchbox").fill("")
    page.get_by_label("of class").select_option("control")
    assert strategies_of(table) == ["none"]
    page.get_by_label("of class").select_option("")
    assert strategies_of(table) == everybody
    expect(page.locator("#n-shown")).to_be_empty()


def test_a_filter_that_leaves_nothing_says_so(page: Page) -> None:
    page.get_by_role("searchbox").fill("no such strategy")
    figure = section_of(page, "wide-mlp").locator("figure[data-chart$=-ranking]")
    expect(figure.locator(".nothing")).to_be_visible()
    expect(figure.locator(".picture")).to_be_hidden()
    page.get_by_role("searchbox").fill("all")
    expect(figure.locator(".picture")).to_be_visible()


def test_tables_are_sorted_by_keyboard_and_charts_follow(page: Page) -> None:
    section = section_of(page, "wide-mlp")
    table = section.locator("table[data-table=speed]")
    button = table.get_by_role("button", name="strategy")
    button.focus()
    page.keyboard.press("Enter")
    names = strategies_of(table)
    assert names == sorted(names, key=str.lower)
    assert table.locator("th[aria-sort=ascending]").count() == 1
    page.keyboard.press("Enter")
    assert strategies_of(table) == names[::-1]
    rates = table.get_by_role("button", name="examples/s")
    rates.click()
    rates.click()
    values = [
        float(str(cell.get_attribute("data-v")))
        for cell in table.locator("tbody td:nth-child(4)[data-v]").all()
    ]
    assert values == sorted(values, reverse=True)
    figure = section.locator("figure[data-chart$=-ranking]")
    figure.scroll_into_view_if_needed()
    assert figure.locator(".live svg").is_visible()
    lanes = [text for text in figure.locator(".live svg text").all_text_contents() if text.strip() in names]
    assert [text.strip() for text in lanes] == [
        name for name in strategies_of(table) if name in {text.strip() for text in lanes}
    ]


def test_another_baseline_changes_ratios_in_table_and_chart(page: Page) -> None:
    section = section_of(page, "wide-mlp")
    table = section.locator("table[data-table=speed]")
    before = float(str(table.locator("tr[data-key=all-reduce] td[data-v]").nth(2).get_attribute("data-v")))
    section.get_by_label("Baseline of the ratios").select_option("all-reduce")
    expect(table.locator("thead")).to_contain_text("÷ all-reduce")
    row = table.locator("tr[data-key=single]")
    after = float(str(row.locator("td").nth(3).get_attribute("data-v")))
    # The same pairs of repeats, turned around.
    assert after == pytest.approx(1 / before, rel=1e-3)
    expect(table.locator("tr[data-key=all-reduce] th")).to_contain_text("baseline")
    expect(row.locator("th")).not_to_contain_text("baseline")
    figure = section.locator("figure[data-chart$=-ranking]")
    figure.scroll_into_view_if_needed()
    expect(figure.locator(".live svg")).to_contain_text(row.locator("td").nth(3).inner_text().split("\n")[0])


def test_a_chart_tells_what_is_pointed_at(page: Page) -> None:
    figure = section_of(page, "wide-mlp").locator("figure[data-chart$=-ranking]")
    figure.scroll_into_view_if_needed()
    picture = figure.locator(".live")
    expect(picture.locator("svg")).to_be_visible()
    picture.hover(position={"x": 270, "y": 63})
    expect(picture).to_contain_text(re.compile(r"examples/s, .*n = 3"))


def test_a_chart_is_saved_as_the_reader_has_it(page: Page) -> None:
    page.get_by_role("searchbox").fill("all-reduce, single")
    figure = section_of(page, "wide-mlp").locator("figure[data-chart$=-ranking]")
    figure.scroll_into_view_if_needed()
    expect(figure.locator(".live svg")).not_to_contain_text("ps-load-balancing")
    hold_saved_files(page, figure, ["all-reduce", "single", "✓ equivalent", "95 % confidence interval"])


def test_lines_of_a_saved_chart_are_named_in_its_legend(page: Page) -> None:
    figure = section_of(page, "wide-mlp").locator("figure[data-chart$=-loss-by-step]")
    figure.scroll_into_view_if_needed()
    hold_saved_files(page, figure, ["all-reduce", "ps:staleness=2,sync=true", "single"])


def test_a_filter_concerns_what_a_strategy_is_in_that_section(page: Page) -> None:
    page.get_by_label("of class").select_option("correct")
    assert "broken-reduce" not in strategies_of(
        section_of(page, "wide-mlp").locator("table[data-table=speed]")
    )
    for row in page.locator("table[data-table=speed] tbody tr:visible").all():
        assert "✗" not in row.inner_text()


def test_a_chart_that_was_filtered_away_comes_back_as_the_filter_has_it(page: Page) -> None:
    page.get_by_role("searchbox").fill("no such strategy")
    figure = section_of(page, "word-lm").locator("figure[data-chart$=-ranking]")
    figure.scroll_into_view_if_needed()
    expect(figure.locator(".nothing")).to_be_visible()
    page.get_by_role("searchbox").fill("single")
    expect(figure.locator(".live svg")).to_contain_text("single")
    expect(figure.locator(".live svg")).not_to_contain_text("all-reduce")


def test_the_first_baseline_again_is_what_stood_there_at_first(page: Page) -> None:
    section = section_of(page, "wide-mlp")
    table = section.locator("table[data-table=speed]")
    figure = section.locator("figure[data-chart$=-ranking]")
    figure.scroll_into_view_if_needed()
    expect(figure.locator(".live svg")).to_be_visible()
    before = table.inner_text(), figure.locator(".live svg").text_content()
    select = section.get_by_label("Baseline of the ratios")
    first = select.input_value()
    assert first == "single"
    select.select_option("all-reduce")
    # Figures that cannot be are no faster for another baseline.
    expect(figure.locator(".live svg")).to_contain_text("implausible")
    select.select_option(first)
    assert (table.inner_text(), figure.locator(".live svg").text_content()) == before


def test_print_shows_what_the_reader_has_chosen_without_the_controls(page: Page) -> None:
    section = section_of(page, "wide-mlp")
    figure = section.locator("figure[data-chart$=-ranking]")
    figure.scroll_into_view_if_needed()
    expect(figure.locator(".live svg")).to_be_visible()
    section.get_by_label("Baseline of the ratios").select_option("all-reduce")
    page.get_by_role("searchbox").fill("all-reduce, single")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    printed = figure.locator(".printed svg")
    expect(printed).to_be_visible()
    expect(figure.locator(".live")).to_be_hidden()
    expect(page.locator(".toolbar")).to_be_hidden()
    expect(page.get_by_role("navigation")).to_be_hidden()
    # A closed part keeps its title, and no table is cut.
    page.evaluate("document.getElementById('glossary').open = false")
    expect(page.locator("#glossary > summary")).to_be_visible()
    assert page.locator(".scroll").first.evaluate("each => getComputedStyle(each).overflowX") == "visible"
    chosen = section.locator("tr[data-key=single] td").nth(3).inner_text().split("\n")[0]
    expect(printed).to_contain_text(chosen)
    expect(printed).not_to_contain_text("ps-load-balancing")
