"""What is asked of a history without a run: what is known, what a night said, runs that become nights."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from harness.cli import output
from harness.cli.answer import Answer
from harness.cli.nightly.night_answer import night_answer
from harness.errors import EXIT_OK, UsageError
from reports.history.benchmarks import added_benchmarks
from reports.history.night import added
from reports.history.store import History, Night, reading, writing
from reports.history.verdicts import names_of, verdict_of
from strategies.errors import suggestion


def acknowledged(store: Path, case: str, reason: str) -> Answer:
    """Note that what has changed of a case is known."""
    with writing(store) as history:
        nights = history.nights()
        if not nights:
            raise UsageError(f"must name a history with a night, got none in {store}", field="store")
        names = {name for series in history.series() for name in names_of(series.subject)}
        if case not in names:
            hint = suggestion(case, sorted(names))
            raise UsageError(
                f"must be a case, a strategy, or workload and strategy, got {case!r}; {hint}", field="ack"
            )
        last = max(nights, key=lambda night: night.id)
        history.acknowledge(case, until=last, reason=reason)
    document = {"case": case, "until": last.name, "reason": reason}
    line = f"known from now on: what has changed of {case} up to {last.name}: {reason}"
    return Answer(document=document, show=partial(output.say, line))


def imported(store: Path, paths: Sequence[Path], *, confirm: int, prometheus: Path | None) -> Answer:
    """Add run folders and files of pytest-benchmark as nights, and say what the last of them says."""
    with writing(store, clock=partial(datetime.now, UTC)) as history:
        for path in paths:
            is_run = not path.is_file()
            night = added(history, path, tell=output.warn) if is_run else added_benchmarks(history, path)
            output.warn(f"{night.name}: {path}")
        verdict = verdict_of(history, night, confirm=confirm)
    return night_answer(store, verdict, otherwise=EXIT_OK, prometheus=prometheus)


def replayed(store: Path, name: str, *, confirm: int, prometheus: Path | None) -> Answer:
    """Say again what a night said."""
    with reading(store) as history:
        verdict = verdict_of(history, _named(history, name), confirm=confirm)
    return night_answer(store, verdict, otherwise=EXIT_OK, prometheus=prometheus)


def _named(history: History, name: str) -> Night:
    nights = {night.name: night for night in history.nights()}
    if name not in nights:
        raise UsageError(
            f"must be a night of the history, got {name!r}; {suggestion(name, nights)}", field="replay"
        )
    return nights[name]
