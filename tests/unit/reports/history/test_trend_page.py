"""The trend page: what it says, that names stay text, and that it stays small."""

from __future__ import annotations

import itertools
import json
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest
from page_parts import Page
from synthetic_run import FORMULA, MARKDOWN, SCRIPT
from trend_history import (
    ENDED_BEFORE,
    GAP,
    LAST,
    METRICS,
    N_NIGHTS,
    SLOWER_FOR,
    STRATEGIES,
    figure,
    page_of,
    write_history,
)

from reports.history.figures import Figure, NewNight, Subject
from reports.history.store import reading, writing
from reports.history.trend_charts import MOST_LINES, panel_chart, sections_of, shown_series
from reports.history.trend_page import MOST_CHARTS
from reports.history.verdict_text import counts_text, verdict_line
from reports.history.verdicts import verdict_of

BEGAN = (LAST - timedelta(days=SLOWER_FOR - 1)).date()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_history(tmp_path_factory.mktemp("trend"))


@pytest.fixture(scope="module")
def html(store: Path) -> str:
    return page_of(store)


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def charts_of(page: Page) -> list[dict]:
    return list(page.drawn_from["charts"].values())


def test_the_answer_comes_first_with_cause_since_when_size_and_commits(store: Path, page: Page) -> None:
    with reading(store) as history:
        verdict = verdict_of(history, history.nights()[-1])
    text = "".join(page.text).partition("This night")[2]
    order = [
        counts_text(verdict),
        f"Regressed since {BEGAN}: ps on digits-cnn",
        f"since {BEGAN}, {SLOWER_FOR} nights",
        f"abc1234 {SCRIPT}",
        "Known regressions",
        "Failed or skipped cases",
        "Throughput ratio to single",
        "All series",
        "Ended series",
    ]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert json.loads(page.scripts["stratbench-data"])["verdict"] == verdict_line(verdict)


@pytest.mark.parametrize("name", [SCRIPT, FORMULA, MARKDOWN])
def test_hostile_names_reasons_and_commits_are_text(page: Page, name: str) -> None:
    assert name in "".join(page.text)
    assert [tag for tag, attrs in page.tags if tag == "script"] == ["script"] * 4
    assert "<script>document.title" not in page.scripts["stratbench-charts"]


def test_changes_are_events_and_nights_without_a_run_are_gaps(page: Page) -> None:
    newest = next(
        chart for chart in charts_of(page) if chart["label"].startswith("Throughput ratio to single, the")
    )
    assert [line["name"].partition(",")[0] for line in newest["lines"]] == ["ps", "all-reduce"]
    assert {event["text"] for event in newest["events"]} == {f"since {BEGAN}"}
    assert {key for event in newest["events"] for key in event["keys"]} == {
        line["key"] for line in newest["lines"]
    }
    for line in newest["lines"]:
        values = {date(1970, 1, 1) + timedelta(days=x): y for x, y in line["points"]}
        without = {(LAST - timedelta(days=N_NIGHTS - 1 - night)).date() for night in GAP}
        assert {day for day, value in values.items() if value is None} <= without
        assert sum(value is None for value in values.values()) == 1
        assert not any(values.get(day) for day in without)
    ps = newest["lines"][0]["points"]
    assert all(y == pytest.approx(-0.2, abs=0.05) for x, y in ps[-SLOWER_FOR:])
    assert all(y is None or abs(y) < 0.05 for x, y in ps[:-SLOWER_FOR])


def test_every_series_is_in_the_table_and_can_be_filtered_by_state(page: Page) -> None:
    filterable = page.drawn_from["kinds"][""]
    rows = [attrs["data-key"] for tag, attrs in page.tags if tag == "tr" and "data-key" in attrs]
    assert len(rows) == len(set(rows)) == 2 * len(STRATEGIES) * len(METRICS)
    assert set(rows) == set(filterable)
    assert [key for key, states in filterable.items() if states == ["regressed"]] == rows[:2]
    assert {line["key"] for chart in charts_of(page) for line in chart["lines"]} <= set(filterable)


def test_behind_every_chart_are_its_numbers(html: str, page: Page) -> None:
    assert html.count("Numbers of this chart") == len(charts_of(page))
    first = html[html.index("Numbers of this chart") :]
    first = first[: first.index("</table>")]
    assert first.count("<tr>") - 1 == len(
        [y for _, y in charts_of(page)[0]["lines"][0]["points"] if y is not None]
    )
    assert f'<th scope="row">{LAST.date()}</th>' in first


def test_each_night_of_one_date_is_a_point_with_its_name(tmp_path: Path) -> None:
    """Eight nights of one date, the last three of them slower; they were one point, the median of all."""
    rng = np.random.default_rng(0)
    with writing(tmp_path) as history:
        for night in range(8):
            history.add(
                NewNight(
                    figures=[figure("w", "ps", "rate", 0.5 if night >= 5 else 1.0, rng)],
                    lost=(),
                    started_utc=(LAST + timedelta(minutes=night)).isoformat(),
                    experiment="x",
                    run=f"run-{night}",
                    run_dir="",
                )
            )
    html = page_of(tmp_path)
    (chart,) = charts_of(Page(html))
    (line,) = chart["lines"]
    places = [x for x, _ in line["points"]]
    first = (LAST.date() - date(1970, 1, 1)).days
    assert places == [pytest.approx(first + night / 8, abs=0.01) for night in range(8)]
    assert [y < -0.25 for _, y in line["points"]] == [False] * 5 + [True] * 3
    assert [tip.rpartition(" at ")[2] for tip in line["tips"]] == [
        "2026-11-26",
        *(f"2026-11-26.{night}" for night in range(2, 9)),
    ]
    assert html.count('<th scope="row">2026-11-26') == 8
    for event in chart["events"]:
        assert (event["x"], event["text"]) == (pytest.approx(first + 5 / 8, abs=0.01), "since 2026-11-26.6")


def test_links_lead_somewhere_and_ids_are_used_once(page: Page) -> None:
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {str(attrs["href"])[1:] for tag, attrs in page.tags if tag == "a"} <= set(ids)


def test_a_page_of_an_earlier_night_knows_nothing_of_later_ones(store: Path) -> None:
    before = (BEGAN - timedelta(days=1)).isoformat()
    page = Page(page_of(store, before))
    assert "Nothing has changed within a month." in "".join(page.text)
    last = max(x for chart in charts_of(page) for line in chart["lines"] for x, _ in line["points"])
    assert date(1970, 1, 1) + timedelta(days=last) == date.fromisoformat(before)


@pytest.mark.parametrize(
    ("n_nights", "reason", "when"),
    [
        (1, "too early for changes", "1 night so far; changes are reported from night 4 on"),
        (2, "too early for changes", "2 nights so far; changes are reported from night 4 on"),
        (
            5,
            "few nights",
            "5 nights so far; before night 11, only values beyond all earlier ones are reported",
        ),
    ],
)
def test_of_too_few_nights_it_says_so_and_shows_them(
    tmp_path: Path, n_nights: int, reason: str, when: str
) -> None:
    store = write_history(tmp_path, strategies=("single", "ps"), n_nights=n_nights, slower=False)
    html = page_of(store)
    page = Page(html)
    text = "".join(page.text)
    n_series = 2 * 2 * len(METRICS)
    assert f"New series: {reason}" in page.text
    assert f"{n_series} series: {when}" in text
    assert f"{n_series} new, 1 without a figure" in text
    assert "Nothing has changed within a month" not in text
    assert "in which nothing has happened" not in text
    assert len(charts_of(page)) == 2 * len(METRICS)
    assert 'class="behind quiet"' not in html


def test_series_that_join_older_ones_are_new_while_the_others_are_judged(tmp_path: Path) -> None:
    write_history(tmp_path, strategies=("single",), n_nights=20, slower=False)
    with writing(tmp_path) as history:
        rng = np.random.default_rng(1)
        last = history.add(
            NewNight(
                figures=[figure("digits-cnn", name, "ratio", 1.0, rng) for name in ("single", "ps")],
                lost=(),
                started_utc=(LAST + timedelta(hours=1)).isoformat(),
                experiment=SCRIPT,
                run="joined",
                run_dir="",
            )
        )
    text = "".join(Page(page_of(tmp_path, last.name)).text)
    assert f"1 of {2 * len(METRICS) + 1} series: 1 night so far" in text
    assert "missed, 1 new, 1 ok" in text


def test_what_has_changed_is_drawn_before_what_has_not_and_lines_stay_few(tmp_path: Path) -> None:
    names = ("single", "ps", "all-reduce", *(f"s{k}" for k in range(12)))
    store = write_history(tmp_path, strategies=names, n_nights=60)
    with reading(store) as history:
        verdict = verdict_of(history, history.nights()[-1])
        first, *_ = sections_of(shown_series(verdict, history.series(until=verdict.night), history.nights()))
    assert first.title == "digits-cnn"
    assert [[panel_series.subject.strategy for panel_series in panel.series] for panel in first.changed] == [
        ["ps", "all-reduce"],
        ["ps"],
    ]
    assert all(len(panel.series) <= MOST_LINES for panel in first.unchanged)
    n_drawn = sum(len(panel.series) + panel.n_left for panel in (*first.changed, *first.unchanged))
    assert n_drawn == len(names) * len(METRICS)
    assert first.n_unchanged == n_drawn - 3


def test_charts_are_as_many_as_somebody_reads_and_the_rest_is_named(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reports.history.trend_page.MOST_CHARTS", 3)
    page = Page(page_of(store))
    labels = [chart["label"] for chart in charts_of(page)]
    assert [label.partition(",")[0] for label in labels[:2]] == ["Throughput ratio to single", "Peak memory"]
    assert len(labels) == 3 < MOST_CHARTS
    assert "Without a chart, in the" in "".join(page.text)


def test_a_panel_without_a_chart_takes_the_room_of_none(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    panels = itertools.count()
    monkeypatch.setattr("reports.history.trend_page.MOST_CHARTS", 3)
    monkeypatch.setattr(
        "reports.history.trend_page.panel_chart",
        lambda panel, *, until: panel_chart(panel, until=until) if next(panels) else None,
    )
    labels = [chart["label"] for chart in charts_of(Page(page_of(store)))]
    assert len(labels) == 3
    assert labels[0].partition(",")[0] == "Peak memory"


def test_a_series_of_an_older_lock_file_has_ended(html: str, store: Path) -> None:
    ended = html[html.index("Ended series") :]
    until = (LAST - timedelta(days=ENDED_BEFORE)).date()
    assert f">{until}</td>" in ended
    assert "Ended series" not in page_of(store, (until + timedelta(days=1)).isoformat())


def test_benchmarks_without_a_workload_are_of_their_file_and_what_ended_says_so(tmp_path: Path) -> None:
    subjects = [
        Subject(
            case=f"tests/{file}.py::test_{name}",
            workload="benchmarks",
            shape="a processor",
            strategy=f"test_{name}",
            comparison_key="machine",
            lock_hash="",
            metric="seconds",
        )
        for file in "ab"
        for name in ("sum", "copy")
    ]
    with writing(tmp_path) as history:
        for night in range(14):
            there = subjects if night < 12 else subjects[:-1]
            last = history.add(
                NewNight(
                    figures=[
                        Figure(subject=of, value=0.1 + 0.0001 * (night % 3), error=None, n=5) for of in there
                    ],
                    lost=(),
                    started_utc=(LAST - timedelta(days=13 - night)).isoformat(),
                    experiment="pytest-benchmark",
                    run=str(night),
                    run_dir="",
                )
            )
        verdict = verdict_of(history, last)
        sections = sections_of(shown_series(verdict, history.series(until=last), history.nights()))
    assert sorted(section.title for section in sections) == ["tests/a.py", "tests/b.py"]
    (missed,) = [panel for section in sections for panel in section.changed]
    until = (LAST - timedelta(days=2)).date()
    assert [series_item.name for series_item in missed.series] == [f"test_copy, until {until}"]
    assert sum(section.n_unchanged for section in sections) == len(subjects) - 1
