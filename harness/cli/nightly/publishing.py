"""A night's files for readers: its trend page, and its figures for Prometheus."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.cli.nightly.commits_of_change import commits_of
from harness.cli.nightly.prometheus_file import write_page
from harness.cli.nightly.trend_file import write_trend
from reports.history.verdicts import NightVerdict


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedNight:
    """What a night says, and where its page is.

    Attributes:
        report: its trend page; None where that could not be written.
    """

    verdict: NightVerdict
    report: Path | None


def publish(store: Path, verdict: NightVerdict, *, prometheus: Path | None = None) -> PublishedNight:
    """Write a night's files; where one cannot be written a line says so, as the night is in the history.

    Args:
        prometheus: a file that is written for Prometheus; None for no such file.
    """
    report = write_trend(store, verdict, commits_of)
    if prometheus is not None:
        write_page(prometheus, verdict)
    return PublishedNight(verdict=verdict, report=report)
