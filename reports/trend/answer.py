"""Cards of what a night says: what has got worse and what that comes of, then what else to look at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.records.legible_text import spelt_out
from reports.history.figures import Lost
from reports.history.store import date_of
from reports.history.verdicts import NightVerdict, SeriesVerdict
from reports.history.wording import Commits, drifting_by, moved, place_name, series_name, too_early
from reports.trend.panels import ShownSeries

_MOST_ITEMS, _MOST_COMMITS, _MOST_LETTERS = 12, 20, 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A series or case, and what is said of it."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What belongs together of a night.

    Attributes:
        state: of all its series. n_more: items that are not shown. n_odd: series with one odd night so far.
        commits: between the nights before and after, where they are known; `n_more_commits` are not shown.
    """

    state: str
    headline: str
    items: tuple[Item, ...]
    n_more: int = 0
    n_odd: int = 0
    commits: tuple[str, ...] = ()
    n_more_commits: int = 0


_STATES = (
    ("pending", "May have changed; a few more nights will tell"),
    ("drifting", "Moves a little every night"),
    ("improved", "Has got better"),
    ("known", "Has got worse, and is known"),
    ("missed", "Has no figure tonight"),
)
"""State → headline, those that are no regression, the most urgent first."""


def cards(verdict: NightVerdict, shown: Sequence[ShownSeries], commits: Commits) -> tuple[Card, ...]:
    """All that a night says, in the order in which it is to be looked at."""
    failed = [each for each in verdict.lost if not each.is_wrong]
    return (
        *_without_figure("Computes something else than it promises", verdict.wrong),
        *_regressions(verdict, commits),
        *_others(shown),
        *_young(verdict),
        *_without_figure("Cases that failed, or were skipped", failed),
    )


def _regressions(verdict: NightVerdict, commits: Commits) -> Iterator[Card]:
    for cause in verdict.causes:
        first = cause.members[0].since
        since = f", since {first.name}" if first else ""
        of_cause = list(dict.fromkeys(commit for each in cause.members for commit in commits(each)))
        yield Card(
            state="regressed",
            headline=spelt_out(f"Has got worse{since}: {cause.what}"),
            items=tuple(_item(each) for each in cause.members[:_MOST_ITEMS]),
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
            items=(Item(name=f"{len(young)}{of_all} series", text=when),),
        )


def _without_figure(headline: str, cases: Sequence[Lost]) -> Iterator[Card]:
    if cases:
        yield Card(
            state="lost",
            headline=headline,
            items=tuple(
                Item(name=spelt_out(place_name(each)), text=_clipped(f"{each.status}: {each.message}"))
                for each in cases[:_MOST_ITEMS]
            ),
            n_more=len(cases[_MOST_ITEMS:]),
        )


def _item(verdict: SeriesVerdict) -> Item:
    why = f": {verdict.why}" if verdict.why else ""
    name = series_name(verdict)
    if verdict.change is not None:
        # What has changed begins with its metric.
        name, text = place_name(verdict.series.subject), f"{moved(verdict)}{why}"
    elif verdict.state == "drifting":
        text = drifting_by(verdict)
    else:
        text = f"last measured on {date_of(int(verdict.series.days[-1]))}"
    return Item(name=spelt_out(name), text=_clipped(text))


def _clipped(text: str) -> str:
    """Text on one line, as much of it as somebody reads."""
    return spelt_out(text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}…")
