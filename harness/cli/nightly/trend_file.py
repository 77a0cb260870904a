"""The trend pages in a store: one for each experiment, and one for each earlier night that is asked for."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from harness.atomic_files import write_text
from harness.canonical import canonical_hash, slug
from harness.cli import output
from harness.cli.nightly.which_night import newest_of
from harness.contained_files import open_to_write
from harness.errors import StoreError
from reports.history.database import HistoryError
from reports.history.store import History, Night, reading
from reports.history.verdicts import NightVerdict
from reports.history.wording import Commits
from reports.trend.page import trend_page

TREND = "trend.html"
"""Of the experiment that a store began with."""
_LOCK = "pages.lock"
"""Apart from the history's, which a night has for as long as it runs."""


def live_page(history: History, experiment: str) -> Path:
    """The page of an experiment's newest night."""
    nights = history.nights()
    if not nights or min(nights, key=lambda night: night.id).experiment == experiment:
        return history.folder / TREND
    name = slug(experiment)
    unlike_others = "" if name == experiment else f"-{canonical_hash(experiment)[:8]}"
    return history.folder / f"trend-{name}{unlike_others}.html"


def page_of(history: History, night: Night) -> Path:
    """The page of a night: the live one for the newest of its experiment, one of its own for others."""
    newest = newest_of(history, night.experiment)
    if newest is None or newest.id == night.id:
        return live_page(history, night.experiment)
    # No experiment's page begins like this, whatever it is called.
    return history.folder / f"night-{night.name}.html"


def write_trend(store: Path, verdict: NightVerdict, commits: Commits) -> Path | None:
    """Write the page of a night, whole or not at all.

    Returns:
        Its path; None where it cannot be written, which is told: the night itself is in the history.
    """
    path, night = store / TREND, verdict.night
    try:
        with reading(store) as history:
            path = page_of(history, night)
            page = trend_page(history, verdict, commits)
        # Which night is the newest is asked again: another may have been added while the page was made.
        with _pages_locked(store), reading(store) as history:
            live, newest = live_page(history, night.experiment), newest_of(history, night.experiment)
            path = page_of(history, night)
            write_text(path, page)
    except (OSError, sqlite3.Error, HistoryError, StoreError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        output.warn(
            f"{path} must be a file that can be written, got {why}; the night is in the history, and "
            f"`--replay {night.name}` writes its page"
        )
        return None
    if path != live and newest is not None:
        output.warn(f"{path} is the page of {night.name}; {live.name} stays that of {newest.name}")
    return path


@contextlib.contextmanager
def _pages_locked(store: Path) -> Iterator[None]:
    """The pages of a store for this process alone, once others have put theirs in place."""
    with os.fdopen(open_to_write(store / _LOCK), "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
