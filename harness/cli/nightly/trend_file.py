"""The trend page in a store: written anew after each night, whole or not at all."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from harness.atomic_files import write_text
from harness.cli import output
from reports.history.database import HistoryError
from reports.history.store import reading
from reports.history.verdicts import NightVerdict
from reports.history.wording import Commits
from reports.trend.page import trend_page

TREND = "trend.html"


def write_trend(store: Path, verdict: NightVerdict, commits: Commits) -> Path | None:
    """Write the page of a night.

    Returns:
        Its path; None where it cannot be written, which is told: the night itself is in the history.
    """
    path = store / TREND
    try:
        with reading(store) as history:
            page = trend_page(history, verdict, commits)
        return write_text(path, page)
    except (OSError, sqlite3.Error, HistoryError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        output.warn(
            f"{path} must be a file that can be written, got {why}; the night is in the history, and "
            f"`--replay {verdict.night.name}` writes its page"
        )
        return None
