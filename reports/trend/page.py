"""The trend page: one self-contained file, whole without scripts, small whatever the history's length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from harness.records.legible_text import spelt_out
from reports.history.store import History
from reports.history.verdicts import NightVerdict
from reports.history.wording import Commits, code_of, document_of, verdict_line
from reports.pages.page import page_script, script_hash, template
from reports.pages.pictures import Picture, Pictures, packed
from reports.trend.answer import cards
from reports.trend.charts import PanelChart, all_nights, newest_nights
from reports.trend.panels import Panel, Section, sections_of, shown_series
from reports.trend.tables import Numbers, ended_table, numbers, series_table
from reports.trend.thinning import NIGHTLY_DAYS, WEEKLY_DAYS

MOST_CHARTS = 40
"""More than these nobody reads, and each adds a tenth of a megabyte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnChart:
    """A picture and the numbers behind it."""

    picture: Picture
    numbers: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnPanel:
    """A panel with its charts; `newest` is None where there was no room for it."""

    panel: Panel
    newest: DrawnChart | None
    all: DrawnChart | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnSection:
    """A section with its panels."""

    section: Section
    changed: tuple[DrawnPanel, ...]
    quiet: tuple[DrawnPanel, ...]


@dataclass(slots=True)
class _Room:
    """Charts for which there is room, drawn in the order in which they matter."""

    until: int
    pictures: Pictures = field(default_factory=Pictures)
    drawn: dict[tuple[str, str], DrawnChart] = field(default_factory=dict)

    def draw(self, panels: Sequence[Panel], which: str, made_by: Callable[..., PanelChart | None]) -> None:
        for panel in panels:
            if len(self.drawn) >= MOST_CHARTS:
                return
            chart = made_by(panel, until=self.until)
            if chart is None:
                continue
            picture = self.pictures.add(f"trend-{len(self.drawn)}", chart.chart)
            self.drawn[panel.key, which] = DrawnChart(picture=picture, numbers=numbers(chart))

    def panels(self, panels: Sequence[Panel]) -> tuple[DrawnPanel, ...]:
        return tuple(
            DrawnPanel(
                panel=panel,
                newest=self.drawn.get((panel.key, "newest")),
                all=self.drawn.get((panel.key, "all")),
            )
            for panel in panels
        )


def trend_page(history: History, verdict: NightVerdict, commits: Commits) -> str:
    """What a night says, and all nights up to it, as a page.

    Args:
        commits: between the nights before and after a change.
    """
    all_series = history.series(until=verdict.night)
    with_figures = {night for series in all_series for night in series.nights.tolist()}
    shown = shown_series(
        verdict, all_series, [night for night in history.nights() if night.id in with_figures]
    )
    sections = sections_of(shown)
    room = _Room(until=verdict.night.day)
    changed = [panel for section in sections for panel in section.changed]
    quiet = [panel for section in sections for panel in section.quiet]
    room.draw(changed, "newest", newest_nights)
    room.draw(changed, "all", all_nights)
    room.draw(quiet, "newest", newest_nights)
    room.draw(quiet, "all", all_nights)
    script = page_script()
    return template("trend.html.j2").render(
        night=verdict.night,
        experiment=spelt_out(verdict.night.experiment),
        code=code_of(verdict.night),
        line=verdict_line(verdict),
        cards=cards(verdict, shown, commits),
        sections=[
            DrawnSection(
                section=section,
                changed=room.panels(section.changed),
                quiet=room.panels(section.quiet),
            )
            for section in sections
        ],
        n_nights=len(with_figures),
        series=series_table(shown) if shown else None,
        ended=ended_table(all_series, {each.subject for each in shown}),
        states=[state for state, count in verdict.counts.items() if count],
        nightly_days=NIGHTLY_DAYS,
        weekly_days=WEEKLY_DAYS,
        data=document_of(verdict, commits),
        charts=packed(
            {
                "charts": room.pictures.specifications,
                "noun": "series",
                "kinds": {"": {each.key: [each.verdict.state] for each in shown}},
                "ratios": {},
            }
        ),
        script=script,
        script_hash=script_hash(script),
    )
