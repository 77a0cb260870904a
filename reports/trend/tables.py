"""Tables of the trend page: all series, the numbers behind a chart, and series that have ended."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from harness.records.legible_text import spelt_out
from reports.history.figures import METRICS, Subject
from reports.history.store import Series, date_of
from reports.history.wording import METRIC_WORDS, figure_text
from reports.quantities import MISSING, limits, times
from reports.tables.table import Cell, Table, table_of
from reports.trend.charts import PanelChart
from reports.trend.panels import ShownSeries

MOST_ROWS, _MOST_ENDED = 2000, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """Values behind a chart: a heading for each column, and rows of text that begin with their period."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def series_table(shown: Sequence[ShownSeries]) -> Table:
    """Every series with what the night says of it."""
    left = f"; {len(shown) - MOST_ROWS} more are in the history" if len(shown) > MOST_ROWS else ""
    table = table_of(
        "Level: the median of up to 90 nights before the change, or of the newest. Change: with its 95 % "
        f"interval{left}.",
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


def numbers(drawn: PanelChart) -> Numbers:
    """What a chart shows, the newest first."""
    by_period = [
        dict(zip(zip(each.days.tolist(), each.names, strict=True), each.values.tolist(), strict=True))
        for each in drawn.values
    ]
    return Numbers(
        caption=drawn.chart.label,
        columns=(drawn.period, *drawn.names),
        rows=tuple(
            (period[1], *(_percent(values.get(period)) for values in by_period))
            for period in sorted({period for values in by_period for period in values}, reverse=True)
        ),
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
        f"Cases that are no longer run, and those of another machine, method or lock file{left}.",
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
    of = Cell(text=spelt_out(subject.strategy), note=spelt_out(f"{subject.workload} · {subject.shape}"))
    against = f"to {subject.against}" if subject.against else ""
    return of, Cell(text=METRIC_WORDS[subject.metric].title, note=spelt_out(against))


def _percent(value: float | None) -> str:
    return MISSING if value is None else f"{100 * value:+.1f} %"
