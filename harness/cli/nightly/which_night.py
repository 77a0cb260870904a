"""Which night is meant: the newest of an experiment, the one of a date; and what a history holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from harness.errors import UsageError
from reports.history.store import History, Night

_FILES = (".yaml", ".yml")


def name_in_history(experiment: str, settings: Sequence[str]) -> str:
    """What the nights of an experiment are of: what its file says, or the name itself where there is no file.

    Args:
        experiment: a path, the name of a shipped file, or what a history says. settings: as given with --set.
    Raises:
        UsageError: it is a path without a usable file.
    """
    from harness.experiment.load import load_experiment

    path = Path(experiment)
    try:
        return load_experiment(experiment, settings=settings).name
    except UsageError:
        if path.suffix in _FILES or "/" in experiment or path.is_file():
            raise
        return experiment


def newest_of(history: History, experiment: str) -> Night | None:
    """The newest night of an experiment; None where there is none."""
    nights = [night for night in history.nights() if night.experiment == experiment]
    return nights[-1] if nights else None


def holdings(history: History) -> str:
    """How many nights a history has of which experiments."""
    counts = Counter(night.experiment for night in history.nights())
    return (
        " and ".join(
            f"{count} night{'' if count == 1 else 's'} of {name}" for name, count in sorted(counts.items())
        )
        or "no night"
    )


def night_named(history: History, name: str, *, experiment: str) -> Night:
    """The night of a name.

    Args:
        experiment: whose nights are offered instead, where the history has some.
    Raises:
        UsageError: there is none.
    """
    nights = history.nights()
    by_name = {night.name: night for night in nights}
    if name in by_name:
        return by_name[name]
    offered = [night for night in nights if night.experiment == experiment] or nights
    raise UsageError(f"must be a night of the history, got {name!r}; {_offer(offered, name)}", field="replay")


def _offer(nights: Sequence[Night], name: str) -> str:
    if not nights:
        return "it has none yet"
    span = f"there are nights from {nights[0].name} to {nights[-1].name}"
    asked = _place(name)
    if asked is None:
        return f"{span}, each named by its date"
    before = max(
        (night for night in nights if (_place(night.name) or asked) < asked), key=_order, default=None
    )
    newest = f"the first is {nights[0].name}" if before is None else f"the newest before it is {before.name}"
    return f"{newest}; {span}"


def _order(night: Night) -> tuple[date, int]:
    return _place(night.name) or (date.min, 0)


def _place(name: str) -> tuple[date, int] | None:
    """A night's date, and its number among those of the date; None for no such name."""
    day, _, number = name.partition(".")
    try:
        return date.fromisoformat(day), int(number or 1)
    except ValueError:
        return None
