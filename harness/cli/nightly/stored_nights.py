"""What is asked of a history without a run: what is known, what a night said, runs that become nights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from harness.cli import output
from harness.cli.answer import Answer
from harness.cli.nightly.night_answer import night_answer
from harness.cli.nightly.prometheus_file import file_of
from harness.cli.nightly.publishing import publish
from harness.cli.nightly.trend_file import live_page
from harness.cli.nightly.which_night import newest_of, night_named
from harness.contained_files import require_regular
from harness.errors import EXIT_CASE, EXIT_OK, UsageError
from reports.history.benchmarks import NothingUsableError, benchmarks_night
from reports.history.night import NewNight, run_night
from reports.history.store import DATABASE, History, Night, reading, writing
from reports.history.verdicts import NightVerdict, SeriesVerdict, names_of, verdict_of
from strategies.errors import suggestion


def acknowledged(
    store: Path, experiment: str, case: str, reason: str, *, confirm: int, prometheus: Path | None
) -> Answer:
    """Note that what has changed of a case is known, and say what the newest night says from now on.

    Args:
        experiment: whose night is said, where the case is one of its.
    """
    path = store / DATABASE
    none = UsageError(f"must name a history with a night, got none in {path}", field="store")
    require_regular(path)
    # A store of another name must not be made.
    if not path.exists():
        raise none
    with writing(store) as history:
        nights = history.nights()
        if not nights:
            raise none
        names = {name for series in history.series() for name in names_of(series.subject)}
        if case not in names:
            hint = suggestion(case, sorted(names))
            raise UsageError(
                f"must be a case, a strategy, or workload and strategy, got {case!r}; {hint}", field="ack"
            )
        before = _newest_verdicts(history, {night.experiment for night in nights}, confirm)
        concerned = {name for name, verdict in before.items() if case in _changed_names(verdict)}
        if not concerned:
            series = [each for verdict in before.values() for each in verdict.series if _has_changed(each)]
            changed = sorted({names_of(each.series.subject)[-1] for each in series})
            what = f"changed are {', '.join(changed)}" if changed else "nothing else has changed either"
            raise UsageError(
                f"must be a case that has changed, got {case!r}: nothing to acknowledge; {what}", field="ack"
            )
        last = nights[-1]
        history.acknowledge(case, until=last, reason=reason)
        verdicts = _newest_verdicts(history, concerned, confirm)
    answer = _answer(
        store,
        verdicts,
        experiment,
        otherwise_shown=min(verdicts),
        prometheus=prometheus,
        heading=[f"known from now on: what has changed of {case} up to {last.name}: {reason}"],
        fields={"case": case, "until": last.name, "reason": reason},
    )
    # That was asked for, whatever else has got worse.
    return replace(answer, exit_status=EXIT_OK)


def imported(
    store: Path, experiment: str, paths: Sequence[Path], *, confirm: int, prometheus: Path | None
) -> Answer:
    """Add run folders and files of pytest-benchmark as nights, and say what the newest say.

    Args:
        experiment: whose night is said in full, where one of its was imported; else that of the last path.
    """
    new = _new_nights(paths)
    imports = []
    with writing(store, clock=partial(datetime.now, UTC)) as history:
        there = {night.id for night in history.nights()}
        for _, each in new:  # all, before the first is added
            history.require_begun(each.started_utc)
        for path, each in new:
            night = each.added_to(history)
            output.warn(f"{night.name}: {'already in the history: ' if night.id in there else ''}{path}")
            there.add(night.id)
            imports.append(night)
        _tell_of_others(history, experiment, imports)
        verdicts = _newest_verdicts(history, {night.experiment for night in imports}, confirm)
    return _answer(
        store,
        verdicts,
        experiment,
        otherwise_shown=imports[-1].experiment,
        otherwise=EXIT_CASE if any(each.is_damaged for _, each in new) else EXIT_OK,
        prometheus=prometheus,
    )


def _new_nights(paths: Sequence[Path]) -> Sequence[tuple[Path, NewNight]]:
    """Make a night of each path; leave out, with a line, a file of benchmarks without a usable one.

    Raises:
        HistoryError: a path is no run folder and no such file, or nothing of any can be used.
    """
    nights: list[tuple[Path, NewNight]] = []
    unusable: list[NothingUsableError] = []
    for path in paths:
        try:
            nights.append((path, _new_night(path)))
        except NothingUsableError as error:
            unusable.append(error)
    if unusable and not nights:
        raise unusable[0]
    for why in unusable:
        output.warn(f"left out: {why}")
    return nights


def _new_night(path: Path) -> NewNight:
    if path.is_file():
        return benchmarks_night(path, tell=output.warn)
    return run_night(path, tell=output.warn)


def replayed(store: Path, experiment: str, name: str, *, confirm: int, prometheus: Path | None) -> Answer:
    """Say again what a night said."""
    with reading(store) as history:
        night = night_named(history, name, experiment=experiment)
        _tell_of_others(history, experiment, [night])
        verdict = verdict_of(history, night, confirm=confirm)
    file = file_of(prometheus, named=experiment, shown=night.experiment)
    return night_answer(store, publish(store, verdict, prometheus=file), otherwise=EXIT_OK)


def _newest_verdicts(history: History, experiments: set[str], confirm: int) -> Mapping[str, NightVerdict]:
    """What the newest nights of experiments say, by the experiments' names."""
    nights = {name: newest_of(history, name) for name in sorted(experiments)}
    return {
        name: verdict_of(history, night, confirm=confirm)
        for name, night in nights.items()
        if night is not None
    }


def _answer(
    store: Path,
    verdicts: Mapping[str, NightVerdict],
    named: str,
    *,
    otherwise_shown: str,
    prometheus: Path | None,
    otherwise: int = EXIT_OK,
    heading: Sequence[str] = (),
    fields: Mapping[str, object] | None = None,
) -> Answer:
    """What one experiment's night says in full, and those of the others in a line each; all are published.

    Args:
        named: the experiment that was asked for. otherwise_shown: in its place, where it is none of these.
        otherwise: exit status where nothing has regressed.
    """
    shown = named if named in verdicts else otherwise_shown
    file = file_of(prometheus, named=named, shown=shown)
    night = publish(store, verdicts[shown], prometheus=file)
    others = [publish(store, verdict) for name, verdict in verdicts.items() if name != shown]
    return night_answer(store, night, otherwise=otherwise, heading=heading, fields=fields, others=others)


def _changed_names(verdict: NightVerdict) -> set[str]:
    """What cases may be called of which something has changed that can be known."""
    return {name for each in verdict.series if _has_changed(each) for name in names_of(each.series.subject)}


def _has_changed(verdict: SeriesVerdict) -> bool:
    # What is missed tonight may have got worse before.
    is_missed = verdict.state == "missed" and bool(verdict.analysis.changes)
    return is_missed or verdict.drift_is_new or verdict.state in ("regressed", "pending", "known")


def _tell_of_others(history: History, experiment: str, nights: Sequence[Night]) -> None:
    """Say which nights are of another experiment than the one that was named."""
    others = Counter(night.experiment for night in nights if night.experiment != experiment)
    for name, count in others.items():
        are = "night is" if count == 1 else "nights are"
        output.warn(
            f"{count} {are} of {name}, not of {experiment}; each experiment is judged by itself and has a "
            f"page of its own: {live_page(history, name)}"
        )
