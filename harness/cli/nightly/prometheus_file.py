"""The file that Prometheus reads of a night: tried before a run, written for the named experiment alone."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from harness.atomic_files import why_not_writable, write_bytes
from harness.cli import output
from harness.errors import UsageError
from harness.measure.prometheus import NightFigures, SeriesFigure, night_page
from reports.history.verdicts import NightVerdict, SeriesVerdict


def require_writable(path: Path) -> None:
    """Refuse a file that cannot be written, while that has cost nothing; its folder is made when absent.

    Raises:
        UsageError: it cannot be written.
    """
    why = why_not_writable(path)
    if why is not None:
        raise UsageError(
            f"must be a file that can be written, got {why} for {path}; name another", field="prometheus"
        )


def file_of(path: Path | None, *, named: str, shown: str) -> Path | None:
    """The file to write; None, with a line that says so, where the night is not of the experiment named.

    Args:
        named: experiment whose file it is. shown: experiment of the night.
    """
    if path is None or named == shown:
        return path
    output.warn(
        f"{path} must have a night of {named}, got one of {shown}; it stays as it was: name {shown} and a "
        "file of its own"
    )
    return None


def write_page(path: Path, verdict: NightVerdict) -> None:
    """Write what a night says; where that fails a line says so, as the night is in the history."""
    night = NightFigures(
        experiment=verdict.night.experiment,
        began_s=datetime.fromisoformat(verdict.night.started_utc).timestamp(),
        n_by_state=verdict.counts,
        n_lost=len(verdict.lost),
        # What is missed has no figure of this night.
        series=tuple(_series_figure(each) for each in verdict.series if each.state != "missed"),
    )
    try:
        write_bytes(path, night_page(night))
    except OSError as error:
        output.warn(
            f"{path} must be a file that can be written, got {error.strerror}; the night is in the history, "
            f"and `--replay {verdict.night.name} --prometheus` with another file writes it"
        )


def _series_figure(verdict: SeriesVerdict) -> SeriesFigure:
    subject = verdict.series.subject
    drift = verdict.drift_factor if verdict.drift_is_new else None
    return SeriesFigure(
        labels={
            "case": subject.case,
            "workload": subject.workload,
            "shape": subject.shape,
            "strategy": subject.strategy,
            "metric": subject.metric,
            "against": subject.against,
        },
        value=float(verdict.series.values[-1]),
        regression=verdict.factor if verdict.state == "regressed" else drift,
    )
