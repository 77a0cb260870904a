"""Nights of a history: run, imported, replayed, and what is known of their changes."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path

from harness import pipeline
from harness.cli import output
from harness.cli.nightly.publishing import file_for, live_page, newest_of, night_answer, publish
from harness.cli.output import Answer
from harness.contained_files import open_to_write, require_regular
from harness.errors import EXIT_CASE, EXIT_OK, Interrupted, MissingError, StoreError, UsageError
from harness.experiment.model import Experiment
from harness.pipeline import RunOutcome
from harness.preflight import check_experiment
from harness.records.run_documents import default_name
from harness.records.run_folder import remove_old_runs
from harness.requests import RunOptions
from reports.history.benchmarks import NothingUsableError, benchmarks_night
from reports.history.night import NewNight, added, run_night
from reports.history.store import DATABASE, RUNS, History, Night, reading, writing
from reports.history.verdicts import NightVerdict, SeriesVerdict, names_of, verdict_of
from strategies.errors import suggestion

STAMP = "last-night"
"""File of a store that a night touches once it is in the history, and nothing else does."""
_LEAST_FREE_BYTES = 1 << 30


def judged_night(
    store: Path, spec: Experiment, options: RunOptions, *, confirm: int, keep: int
) -> tuple[NightVerdict, RunOutcome]:
    """Run, write, judge, and remove what is too old.

    Args:
        options: of the run, but for its folder, which is one of the store.
        confirm: nights that a change must last. keep: run folders that stay.
    """
    check_experiment(spec)
    with writing(store, clock=partial(datetime.now, UTC)) as history:
        _require_space(store)
        folder = store / RUNS / default_name(spec.name, datetime.now(UTC))
        try:
            outcome = pipeline.run(spec, replace(options, out=folder))
        except Interrupted:
            raise Interrupted(f"interrupted; {_way_out(folder)}, or begin anew") from None
        except StoreError as error:
            raise StoreError(f"{error.message}; {_way_out(folder)}", field="store") from None
        night = added(history, folder, tell=output.warn)
        _stamp(store / STAMP)
        verdict = verdict_of(history, night, confirm=confirm)
        remove_old_runs(store / RUNS, keep)
    return verdict, outcome


def _stamp(path: Path) -> None:
    try:
        with os.fdopen(open_to_write(path), "rb") as stamp:
            os.utime(stamp.fileno())
    except (OSError, StoreError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        output.warn(f"{path} must be a file that can be written, got {why}; Compose looks at its age")


def _way_out(folder: Path) -> str:
    again = f"`stratbench run EXPERIMENT --out {folder} --resume`, then `nightly --import {folder}`"
    return f"the night is not in the history: {again}"


def _require_space(store: Path) -> None:
    free_bytes = shutil.disk_usage(store).free
    if free_bytes < _LEAST_FREE_BYTES:
        free = f"{free_bytes >> 20} MiB free in {store}"
        raise MissingError(
            f"a night needs {_LEAST_FREE_BYTES >> 20} MiB of disk, got {free}; make room, or lower --keep",
            field="store",
        )


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
    file = file_for(prometheus, named=experiment, shown=night.experiment)
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
    file = file_for(prometheus, named=named, shown=shown)
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
