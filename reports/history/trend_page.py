"""Trend page of a history: one self-contained file of limited size."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from harness.records.safe_text import printable
from reports.charts.in_page import PageChart, PageCharts, packed
from reports.history import phrases
from reports.history.database import date_of
from reports.history.figures import METRICS, Lost, Subject
from reports.history.store import History, Series
from reports.history.trend_charts import (
    SHOWN_DAYS,
    PanelChart,
    Section,
    ShownSeries,
    panel_chart,
    sections_of,
    shown_series,
)
from reports.history.verdict_text import (
    Commits,
    code_of,
    commits_of,
    counts_text,
    document_of,
    figure_text,
    metric_title,
    place_name,
    since_text,
    statement,
    too_early,
)
from reports.history.verdicts import ANALYSED_DAYS, NightVerdict
from reports.pages.markup import template
from reports.quantities import MISSING, Cell, Table, limits, table_of, times

MOST_ROWS, _MOST_ENDED = 2000, 200


def series_table(all_shown: Sequence[ShownSeries]) -> Table:
    """Every series with its state, newest value, level and change."""
    more = f"; {len(all_shown) - MOST_ROWS} more are in the history" if len(all_shown) > MOST_ROWS else ""
    table = table_of(
        f"Newest value, level and change of each series, with 95 % interval{more}",
        ("series", "metric", "state", "last", "level", "change", "since", "nights"),
        [_row(series) for series in all_shown[:MOST_ROWS]],
        words=("metric", "state", "since"),
    )
    return replace(table, keys=tuple(series.key for series in all_shown[:MOST_ROWS]))


def number_table(drawn: PanelChart) -> Table:
    """Values of a chart, the newest first."""
    by_night = [
        {(night.day, night.name): night.value for night in nights if night.value is not None}
        for nights in drawn.nights
    ]
    nights = sorted({night for values in by_night for night in values}, reverse=True)
    return table_of(
        drawn.chart.label,
        ("night", *drawn.names),
        [
            (Cell(text=night[1]), *(Cell(text=_percent(values.get(night))) for values in by_night))
            for night in nights
        ],
    )


def ended_table(all_series: Iterable[Series], judged: Collection[Subject]) -> Table | None:
    """Series without a figure within two weeks, the newest first; None without any."""
    ended = sorted(
        (series for series in all_series if series.subject not in judged),
        key=lambda series: int(series.days[-1]),
        reverse=True,
    )
    if not ended:
        return None
    more = f"; {len(ended) - _MOST_ENDED} older ones are in the history" if len(ended) > _MOST_ENDED else ""
    return table_of(
        f"Cases that no longer run, or run on another machine, method or lock file{more}",
        ("series", "metric", "first", "until", "last", "nights"),
        [_ended_row(series) for series in ended[:_MOST_ENDED]],
        words=("metric", "first", "until"),
    )


def _row(series: ShownSeries) -> tuple[Cell, ...]:
    verdict, values = series.verdict, series.past.values
    last, factor = float(values[-1]), verdict.factor
    change = Cell(text=times(factor), note="" if factor is None else limits(verdict.interval), value=factor)
    return (
        *_names(series.subject),
        Cell(text=verdict.state),
        Cell(text=series.figure(last), value=last),
        Cell(text=series.figure(verdict.level), value=verdict.level),
        change,
        Cell(text=verdict.since.name if verdict.since else MISSING),
        Cell(text=str(len(values)), value=float(len(values))),
    )


def _ended_row(series: Series) -> tuple[Cell, ...]:
    last = float(series.values[-1])
    return (
        *_names(series.subject),
        Cell(text=date_of(int(series.days[0])).isoformat()),
        Cell(text=date_of(int(series.days[-1])).isoformat()),
        Cell(text=figure_text(METRICS[series.subject.metric], last), value=last),
        Cell(text=str(len(series.values)), value=float(len(series.values))),
    )


def _names(subject: Subject) -> tuple[Cell, Cell]:
    place = printable(f"{subject.workload} · {subject.shape}")
    title = printable(metric_title(subject.metric, subject.against))
    return Cell(text=printable(subject.strategy), note=place), Cell(text=title)


def _percent(value: float | None) -> str:
    return MISSING if value is None else f"{100 * value:+.1f} %"


_MOST_ITEMS, _MOST_COMMITS, _MOST_LETTERS = 12, 20, 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Statements about series or cases of one state.

    Attributes:
        items: names of series or cases, with statements about each.
        n_more: number of items that are not shown.
        n_outliers: number of series with a single outlier so far.
        commits: commits between the nights before and after a change, if they are known.
        n_more_commits: number of commits that are not shown.
    """

    state: str
    headline: str
    items: tuple[tuple[str, tuple[str, ...]], ...]
    n_more: int = 0
    n_outliers: int = 0
    commits: tuple[str, ...] = ()
    n_more_commits: int = 0


def cards(verdict: NightVerdict, all_shown: Sequence[ShownSeries], commits: Commits) -> tuple[Card, ...]:
    """Statements about a night, the most urgent first."""
    failed = [case for case in verdict.lost if not case.is_wrong]
    return (
        *_without_figure(phrases.WRONG, verdict.wrong),
        *_regressions(verdict, commits),
        *_other_states(all_shown),
        *_new_series(verdict),
        *_without_figure(phrases.FAILED, failed),
    )


def _card(state: str, headline: str, items: Sequence[tuple[str, str]], *, n_outliers: int = 0) -> Card:
    """Card with as many items as it has room for, statements with the same name together."""
    by_name: dict[str, list[str]] = {}
    for name, text in items[:_MOST_ITEMS]:
        by_name.setdefault(printable(name), []).append(_clipped(text))
    return Card(
        state=state,
        headline=printable(headline),
        items=tuple((name, tuple(texts)) for name, texts in by_name.items()),
        n_more=len(items[_MOST_ITEMS:]),
        n_outliers=n_outliers,
    )


def _regressions(verdict: NightVerdict, commits: Commits) -> Iterator[Card]:
    for cause in verdict.causes:
        of_cause = commits_of(cause, commits)
        card = _card(
            "regressed",
            phrases.STATES["regressed"].format(since=since_text(cause.members[0]), cause=cause.label),
            [statement(member) for member in cause.members],
        )
        yield replace(
            card,
            commits=tuple(_clipped(commit) for commit in of_cause[:_MOST_COMMITS]),
            n_more_commits=len(of_cause[_MOST_COMMITS:]),
        )


def _other_states(all_shown: Sequence[ShownSeries]) -> Iterator[Card]:
    for state, headline in phrases.STATES.items():
        if state in ("regressed", "new", "ok"):
            continue
        of_state = [series for series in all_shown if series.verdict.state == state]
        n_outliers = sum(series.is_outlier for series in of_state)
        items = [statement(series.verdict) for series in of_state if not series.is_outlier]
        if of_state:
            yield _card(state, headline, items, n_outliers=n_outliers)


def _new_series(verdict: NightVerdict) -> Iterator[Card]:
    new = [series for series in verdict.series if series.state == "new"]
    if new:
        reason, when = too_early(new)
        of_all = "" if len(new) == len(verdict.series) else f" of {len(verdict.series)}"
        headline = phrases.STATES["new"].format(reason=reason)
        yield _card("new", headline, [(f"{len(new)}{of_all} series", when)])


def _without_figure(headline: str, cases: Sequence[Lost]) -> Iterator[Card]:
    if cases:
        yield _card(
            "lost", headline, [(place_name(case), f"{case.status}: {case.message}") for case in cases]
        )


def _clipped(text: str) -> str:
    return printable(text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}…")


MOST_CHARTS = 40
"""Most charts of a page; each adds a tenth of a megabyte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnChart:
    """A chart and the table of its numbers."""

    picture: PageChart | None
    numbers: Table


def trend_page(history: History, verdict: NightVerdict, commits: Commits) -> str:
    """HTML of the page with a night's verdict and all nights up to it.

    Args:
        commits: function from a series' verdict to the commits between the nights before and after its
            change.
    """
    all_series = history.series(until=verdict.night)
    with_figures = {night for series in all_series for night in series.nights.tolist()}
    all_shown = shown_series(
        verdict, all_series, [night for night in history.nights() if night.id in with_figures]
    )
    sections = sections_of(all_shown)
    charts = PageCharts()
    drawn = _drawn(sections, charts, until=verdict.night.day)
    return template("trend.html.j2").render(
        night=verdict.night,
        experiment=printable(verdict.night.experiment),
        code=code_of(verdict.night),
        counts=counts_text(verdict),
        cards=cards(verdict, all_shown, commits),
        sections=sections,
        drawn=drawn,
        top=next((panel for section in sections for panel in section.changed if panel.key in drawn), None),
        n_nights=len(with_figures),
        series=series_table(all_shown) if all_shown else None,
        ended=ended_table(all_series, {series.subject for series in all_shown}),
        states=[state for state, count in verdict.counts.items() if count],
        shown_days=SHOWN_DAYS,
        analysed_days=ANALYSED_DAYS,
        data=document_of(verdict, commits),
        charts=packed(
            {
                "charts": charts.data,
                "noun": "series",
                "kinds": {"": {series.key: [series.verdict.state] for series in all_shown}},
                "ratios": {},
            }
        ),
    )


def _drawn(sections: Sequence[Section], charts: PageCharts, *, until: int) -> dict[str, DrawnChart]:
    """Charts by panel, those of changed panels first, while there is room."""
    changed = [panel for section in sections for panel in section.changed]
    unchanged = [panel for section in sections for panel in section.unchanged]
    panels = ((panel, panel_chart(panel, until=until)) for panel in (*changed, *unchanged))
    with_chart = ((panel, chart) for panel, chart in panels if chart is not None)
    drawn: dict[str, DrawnChart] = {}
    for panel, chart in itertools.islice(with_chart, MOST_CHARTS):
        picture = charts.add(f"trend-{len(drawn)}", chart.chart)
        drawn[panel.key] = DrawnChart(picture=picture, numbers=number_table(chart))
    return drawn
