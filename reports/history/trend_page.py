"""Trend page of a history: one self-contained file, small whatever the history's length."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from harness.records.safe_text import printable
from reports.charts.in_page import PageChart, PageCharts, packed
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
from reports.history.verdicts import ANALYSED_DAYS, NightVerdict, SeriesVerdict
from reports.history.wording import (
    METRIC_WORDS,
    Commits,
    code_of,
    document_of,
    drifting_by,
    figure_text,
    moved,
    place_name,
    series_name,
    too_early,
    verdict_line,
)
from reports.pages.markup import template
from reports.quantities import MISSING, Cell, Table, limits, table_of, times

MOST_ROWS, _MOST_ENDED = 2000, 200


def series_table(shown: Sequence[ShownSeries]) -> Table:
    """Every series with its state, newest value, level and change."""
    left = f"; {len(shown) - MOST_ROWS} more are in the history" if len(shown) > MOST_ROWS else ""
    table = table_of(
        f"Newest value, level and change of each series, with 95 % interval{left}",
        ("series", "metric", "state", "last", "level", "change", "since", "nights"),
        [_row(each) for each in shown[:MOST_ROWS]],
        words=("metric", "state", "since"),
    )
    return Table(
        caption=table.caption,
        columns=table.columns,
        rows=table.rows,
        keys=tuple(each.key for each in shown[:MOST_ROWS]),
    )


def number_table(drawn: PanelChart) -> Table:
    """Values in a chart, the newest first."""
    by_night = [
        dict(zip(zip(night.days.tolist(), night.names, strict=True), night.values.tolist(), strict=True))
        for night in drawn.nights
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


def ended_table(series: Iterable[Series], judged: Collection[Subject]) -> Table | None:
    """Series without a figure within two weeks, the newest first; None where there are none."""
    ended = sorted(
        (each for each in series if each.subject not in judged),
        key=lambda each: int(each.days[-1]),
        reverse=True,
    )
    if not ended:
        return None
    left = f"; {len(ended) - _MOST_ENDED} older ones are in the history" if len(ended) > _MOST_ENDED else ""
    return table_of(
        f"Cases that no longer run, or run on another machine, method or lock file{left}",
        ("series", "metric", "first", "until", "last", "nights"),
        [_ended_row(each) for each in ended[:_MOST_ENDED]],
        words=("metric", "first", "until"),
    )


def _row(shown: ShownSeries) -> tuple[Cell, ...]:
    verdict, values = shown.verdict, shown.past.values
    last = float(values[-1])
    change = (
        Cell(text=MISSING)
        if verdict.factor is None
        else Cell(text=times(verdict.factor), note=limits(verdict.interval), value=verdict.factor)
    )
    return (
        *_names(shown.subject),
        Cell(text=verdict.state),
        Cell(text=shown.figure(last), value=last),
        Cell(text=shown.figure(shown.level), value=shown.level),
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
    of = Cell(text=printable(subject.strategy), note=printable(f"{subject.workload} · {subject.shape}"))
    against = f"to {subject.against}" if subject.against else ""
    return of, Cell(text=METRIC_WORDS[subject.metric].title, note=printable(against))


def _percent(value: float | None) -> str:
    return MISSING if value is None else f"{100 * value:+.1f} %"


_MOST_ITEMS, _MOST_COMMITS, _MOST_LETTERS = 12, 20, 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Statements about a night that belong together.

    Attributes:
        state: of all its series. items: names of series or cases, and what is said of each.
        n_more: items that are not shown. n_odd: series with one odd night so far.
        commits: between the nights before and after, where they are known; `n_more_commits` are not shown.
    """

    state: str
    headline: str
    items: tuple[tuple[str, str], ...]
    n_more: int = 0
    n_odd: int = 0
    commits: tuple[str, ...] = ()
    n_more_commits: int = 0


_STATES = (
    ("pending", "Pending: needs more nights"),
    ("drifting", "Drifting: moves a little every night"),
    ("improved", "Improved"),
    ("known", "Known regressions"),
    ("missed", "No figure this night"),
)
"""State → headline, those that are no regression, the most urgent first."""


def cards(verdict: NightVerdict, shown: Sequence[ShownSeries], commits: Commits) -> tuple[Card, ...]:
    """Statements about a night, the most urgent first."""
    failed = [each for each in verdict.lost if not each.is_wrong]
    return (
        *_without_figure("Wrong results", verdict.wrong),
        *_regressions(verdict, commits),
        *_others(shown),
        *_young(verdict),
        *_without_figure("Failed or skipped cases", failed),
    )


def _regressions(verdict: NightVerdict, commits: Commits) -> Iterator[Card]:
    for cause in verdict.causes:
        first = cause.members[0].since
        since = f" since {first.name}" if first else ""
        of_cause = list(dict.fromkeys(commit for member in cause.members for commit in commits(member)))
        yield Card(
            state="regressed",
            headline=printable(f"Regressed{since}: {cause.what}"),
            items=tuple(_item(member) for member in cause.members[:_MOST_ITEMS]),
            n_more=len(cause.members[_MOST_ITEMS:]),
            commits=tuple(_clipped(commit) for commit in of_cause[:_MOST_COMMITS]),
            n_more_commits=len(of_cause[_MOST_COMMITS:]),
        )


def _others(shown: Sequence[ShownSeries]) -> Iterator[Card]:
    for state, headline in _STATES:
        of_state = [each.verdict for each in shown if each.verdict.state == state and not each.is_odd_night]
        n_odd = sum(each.verdict.state == state and each.is_odd_night for each in shown)
        if of_state or n_odd:
            yield Card(
                state=state,
                headline=headline,
                items=tuple(_item(each) for each in of_state[:_MOST_ITEMS]),
                n_more=len(of_state[_MOST_ITEMS:]),
                n_odd=n_odd,
            )


def _young(verdict: NightVerdict) -> Iterator[Card]:
    young = [each for each in verdict.series if each.state == "new"]
    if young:
        why, when = too_early(young)
        of_all = "" if len(young) == len(verdict.series) else f" of {len(verdict.series)}"
        yield Card(
            state="new",
            headline=f"{why[0].upper()}{why[1:]}",
            items=((f"{len(young)}{of_all} series", when),),
        )


def _without_figure(headline: str, cases: Sequence[Lost]) -> Iterator[Card]:
    if cases:
        yield Card(
            state="lost",
            headline=headline,
            items=tuple(
                (printable(place_name(case)), _clipped(f"{case.status}: {case.message}"))
                for case in cases[:_MOST_ITEMS]
            ),
            n_more=len(cases[_MOST_ITEMS:]),
        )


def _item(verdict: SeriesVerdict) -> tuple[str, str]:
    why = f": {verdict.why}" if verdict.why else ""
    name = series_name(verdict)
    if verdict.change is not None:
        # What has changed begins with its metric.
        name, text = place_name(verdict.series.subject), f"{moved(verdict)}{why}"
    elif verdict.state == "drifting":
        text = drifting_by(verdict)
    else:
        text = f"last measured on {date_of(int(verdict.series.days[-1]))}"
    return printable(name), _clipped(text)


def _clipped(text: str) -> str:
    return printable(text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}…")


MOST_CHARTS = 40
"""More than these nobody reads, and each adds a tenth of a megabyte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnChart:
    """A chart and the numbers in it."""

    picture: PageChart | None
    numbers: Table


def trend_page(history: History, verdict: NightVerdict, commits: Commits) -> str:
    """Write a night's verdict, and all nights up to it, as a page.

    Args:
        commits: between the nights before and after a change.
    """
    all_series = history.series(until=verdict.night)
    with_figures = {night for series in all_series for night in series.nights.tolist()}
    shown = shown_series(
        verdict, all_series, [night for night in history.nights() if night.id in with_figures]
    )
    sections = sections_of(shown)
    charts = PageCharts()
    drawn = _drawn(sections, charts, until=verdict.night.day)
    return template("trend.html.j2").render(
        night=verdict.night,
        experiment=printable(verdict.night.experiment),
        code=code_of(verdict.night),
        line=verdict_line(verdict),
        cards=cards(verdict, shown, commits),
        sections=sections,
        drawn=drawn,
        top=next((panel for section in sections for panel in section.changed if panel.key in drawn), None),
        n_nights=len(with_figures),
        series=series_table(shown) if shown else None,
        ended=ended_table(all_series, {each.subject for each in shown}),
        states=[state for state, count in verdict.counts.items() if count],
        shown_days=SHOWN_DAYS,
        analysed_days=ANALYSED_DAYS,
        data=document_of(verdict, commits),
        charts=packed(
            {
                "charts": charts.data,
                "noun": "series",
                "kinds": {"": {each.key: [each.verdict.state] for each in shown}},
                "ratios": {},
            }
        ),
    )


def _drawn(sections: Sequence[Section], charts: PageCharts, *, until: int) -> dict[str, DrawnChart]:
    """Charts by panel, those of changed panels first, while there is room."""
    changed = [panel for section in sections for panel in section.changed]
    quiet = [panel for section in sections for panel in section.quiet]
    panels = ((panel, panel_chart(panel, until=until)) for panel in (*changed, *quiet))
    with_chart = ((panel, chart) for panel, chart in panels if chart is not None)
    drawn: dict[str, DrawnChart] = {}
    for panel, chart in itertools.islice(with_chart, MOST_CHARTS):
        picture = charts.add(f"trend-{len(drawn)}", chart.chart)
        drawn[panel.key] = DrawnChart(picture=picture, numbers=number_table(chart))
    return drawn
