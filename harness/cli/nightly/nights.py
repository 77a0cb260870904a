"""Nights of a history: run, imported, replayed, and acknowledged."""

from __future__ import annotations

import os
import shlex
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path

from harness import pipeline
from harness.cli import output
from harness.cli.nightly.publishing import (
    live_page,
    night_answer,
    nights_of,
    prometheus_for,
    publish,
)
from harness.cli.options import HistoryOptions
from harness.cli.output import Answer, answer_in_lines
from harness.errors import EXIT_CASE, EXIT_OK, Interrupted, MissingError, StoreError, UsageError
from harness.experiment.load import load_experiment
from harness.experiment.model import Experiment
from harness.preflight import check_experiment
from harness.records.contained_files import open_to_write, require_regular
from harness.records.run_documents import EXPERIMENT, RUN_FILE, default_name
from harness.records.run_folder import remove_old_runs
from harness.requests import RunOptions
from reports.history.database import DATABASE, NothingUsableError
from reports.history.figures import NewNight, run_night
from reports.history.pytest_benchmark_files import benchmarks_night
from reports.history.store import RUNS, History, Night, reading, writing
from reports.history.verdicts import NightVerdict, SeriesVerdict, names_of, verdict_of
from strategies.errors import suggestion

STAMP = "last-night"
"""File of a store that only a finished night touches."""
_LEAST_FREE_BYTES = 1 << 30
_EXPERIMENT_FILES = (".yaml", ".yml")


def run(
    history_options: HistoryOptions,
    spec: Experiment,
    options: RunOptions,
    *,
    keep: int,
    prometheus: Path | None,
    arguments: Sequence[str] = (),
) -> Answer:
    """Run an experiment, add it to a history, judge it, and remove run folders that are too old.

    Args:
        options: options of the run; its folder is put into the store.
        keep: number of newest run folders that stay.
        arguments: command-line arguments for workers, with which an interrupted run continues.
    """
    store = history_options.store
    check_experiment(spec)
    with writing(store, clock=partial(datetime.now, UTC)) as history:
        _require_space(store)
        folder = store / RUNS / default_name(spec.name, datetime.now(UTC))
        try:
            outcome = pipeline.run(spec, replace(options, out=folder))
        except Interrupted:
            raise Interrupted(f"interrupted; {_way_out(store, folder, spec.name, arguments)}") from None
        except StoreError as error:
            way_out = _way_out(store, folder, spec.name, arguments)
            raise StoreError(f"{error.message}; {way_out}", field="store") from error
        for note in outcome.notes:
            output.warn(note)
        night = history.add(run_night(folder, notify=output.warn))
        _stamp(store / STAMP)
        verdict = verdict_of(history, night, confirm=history_options.confirm)
        remove_old_runs(store / RUNS, keep)
    return night_answer(store, publish(store, verdict, prometheus=prometheus), otherwise=outcome.exit_status)


def import_runs(history_options: HistoryOptions, paths: Sequence[Path], *, prometheus: Path | None) -> Answer:
    """Add run folders and files of pytest-benchmark as nights, and report on the newest.

    The named experiment is reported in full if one of its nights was imported, else that of the last path.
    """
    store, experiment = history_options.store, name_in_history(history_options)
    new = _new_nights(paths)
    imports = []
    with writing(store, clock=partial(datetime.now, UTC)) as history:
        for _, new_night in new:  # all of them, before the first is added
            history.require_begun(new_night.started_utc)
        for path, new_night in new:
            before = history.checksums()
            night = history.add(new_night)
            is_same = before.get(night.id) == history.checksums()[night.id]
            outcome = "already in the history: " if is_same else "replaced the stored night: "
            output.warn(f"{night.name}: {outcome if night.id in before else ''}{path}")
            imports.append(night)
        _warn_of_others(history, experiment, imports)
        verdicts = _newest_verdicts(history, {night.experiment for night in imports}, history_options.confirm)
    is_damaged = any(new_night.is_damaged for _, new_night in new)
    return _answer(
        store,
        verdicts,
        prometheus,
        named=experiment,
        default=imports[-1].experiment,
        otherwise=EXIT_CASE if is_damaged else EXIT_OK,
    )


def acknowledge(
    history_options: HistoryOptions, case: str, reason: str, *, prometheus: Path | None
) -> Answer:
    """Record that a case's changes are known, and report on the newest night again.

    The named experiment is reported in full if the case is one of its.

    Args:
        case: id, strategy, or workload and strategy of the case.
    """
    if not reason.strip():
        raise UsageError("must say why the change is accepted, got nothing; give a text", field="reason")
    store, experiment = history_options.store, name_in_history(history_options)
    path = store / DATABASE
    no_night = UsageError(
        f"must name a history with a night, got none in {path}; add one by `stratbench nightly run`",
        field="store",
    )
    require_regular(path)
    # A mistyped --store must not be created.
    if not path.exists():
        raise no_night
    with writing(store) as history:
        nights = history.nights()
        if not nights:
            raise no_night
        concerned = _experiments_changed_in(history, case, nights, history_options.confirm)
        until = nights[-1]
        history.acknowledge(case, until=until, reason=reason)
        verdicts = _newest_verdicts(history, concerned, history_options.confirm)
    answer = _answer(
        store,
        verdicts,
        prometheus,
        named=experiment,
        default=min(verdicts),
        heading=[f"acknowledged: changes of {case} up to {until.name}: {reason}"],
        fields={"case": case, "until": until.name, "reason": reason},
    )
    # The acknowledgement succeeded, even if other cases have become worse.
    return replace(answer, exit_status=EXIT_OK)


def _experiments_changed_in(history: History, case: str, nights: Sequence[Night], confirm: int) -> set[str]:
    """Experiments in whose newest night a case has changed.

    Raises:
        UsageError: there is no such case, or it has not changed.
    """
    names = {name for series in history.series() for name in names_of(series.subject)}
    if case not in names:
        hint = suggestion(case, sorted(names))
        raise UsageError(
            f"must be a case, a strategy, or workload and strategy, got {case!r}; {hint}", field="ack"
        )
    verdicts = _newest_verdicts(history, {night.experiment for night in nights}, confirm)
    names_by_experiment = {
        experiment: [names_of(item.series.subject) for item in verdict.series if _has_changed(item)]
        for experiment, verdict in verdicts.items()
    }
    concerned = {
        experiment
        for experiment, changed in names_by_experiment.items()
        if any(case in names for names in changed)
    }
    if not concerned:
        others = sorted({names[-1] for changed in names_by_experiment.values() for names in changed})
        hint = f"changed are {', '.join(others)}" if others else "no other case has changed"
        raise UsageError(
            f"must be a case that has changed, got {case!r}: nothing to acknowledge; {hint}", field="ack"
        )
    return concerned


def replay(history_options: HistoryOptions, name: str, *, prometheus: Path | None) -> Answer:
    """Report again on a night."""
    store, experiment = history_options.store, name_in_history(history_options)
    with reading(store) as history:
        night = night_named(history, name, experiment=experiment)
        verdict = verdict_of(history, night, confirm=history_options.confirm)
    return night_answer(store, publish(store, verdict, prometheus=prometheus), otherwise=EXIT_OK)


def write_page(history_options: HistoryOptions) -> Answer:
    """Write the trend page of an experiment's newest night.

    Raises:
        UsageError: the history has none.
    """
    store, experiment = history_options.store, name_in_history(history_options)
    with reading(store) as history:
        night = nights_of(history, experiment, field="trend")[-1]
        verdict = verdict_of(history, night, confirm=history_options.confirm)
    report = publish(store, verdict).report
    return answer_in_lines(
        [] if report is None else [f"report: {report}"],
        {"store": str(store), "night": night.name, "report": report and str(report)},
        EXIT_OK if report else EXIT_CASE,
    )


def name_in_history(history_options: HistoryOptions) -> str:
    """Name of an experiment's nights: the one in its file, or the argument itself if there is no file.

    Raises:
        UsageError: the argument is a path without a usable file.
    """
    experiment = history_options.experiment
    try:
        return load_experiment(experiment, settings=history_options.settings or ()).name
    except UsageError:
        if experiment.endswith(_EXPERIMENT_FILES) or "/" in experiment or Path(experiment).is_file():
            raise
        return experiment


def night_named(history: History, name: str, *, experiment: str) -> Night:
    """Night of an experiment, by its name.

    Raises:
        UsageError: there is none.
    """
    nights = nights_of(history, experiment, field="replay")
    night = next((night for night in nights if night.name == name), None)
    if night is None:
        raise UsageError(
            f"must be a night of {experiment}, got {name!r}; {_offer(nights, name)}", field="replay"
        )
    return night


def _offer(nights: Sequence[Night], name: str) -> str:
    span = f"there are nights from {nights[0].name} to {nights[-1].name}"
    wanted = _date_and_number(name)
    if wanted is None:
        return f"{span}, each named by its date"
    before = [night for night in nights if (_date_and_number(night.name) or wanted) < wanted]
    newest = f"the newest before it is {before[-1].name}" if before else f"the first is {nights[0].name}"
    return f"{newest}; {span}"


def _date_and_number(name: str) -> tuple[date, int] | None:
    day, _, number = name.partition(".")
    try:
        return date.fromisoformat(day), int(number or 1)
    except ValueError:
        return None


def _new_nights(paths: Sequence[Path]) -> Sequence[tuple[Path, NewNight]]:
    """Night of each path; a file of benchmarks without a usable one is left out with a message.

    Raises:
        HistoryError: a path is neither a run folder nor such a file, or none has usable results.
    """
    nights: list[tuple[Path, NewNight]] = []
    unusable: list[NothingUsableError] = []
    for path in paths:
        read = benchmarks_night if path.is_file() else run_night
        try:
            nights.append((path, read(path, notify=output.warn)))
        except NothingUsableError as error:
            unusable.append(error)
    if unusable and not nights:
        raise unusable[0]
    for why in unusable:
        output.warn(f"left out: {why}")
    return nights


def _newest_verdicts(history: History, experiments: set[str], confirm: int) -> Mapping[str, NightVerdict]:
    newest = ((name, history.newest(name)) for name in sorted(experiments))
    return {name: verdict_of(history, night, confirm=confirm) for name, night in newest if night is not None}


def _answer(
    store: Path,
    verdicts: Mapping[str, NightVerdict],
    prometheus: Path | None,
    *,
    named: str,
    default: str,
    otherwise: int = EXIT_OK,
    heading: Sequence[str] = (),
    fields: Mapping[str, object] | None = None,
) -> Answer:
    """Publish all nights; report on one in full, and on each other in a line.

    Args:
        verdicts: verdict on the newest night of each experiment.
        named: experiment to report in full. default: experiment to report if that has no verdict.
    """
    first = named if named in verdicts else default
    file = prometheus_for(prometheus, named=named, experiment=first)
    night = publish(store, verdicts[first], prometheus=file)
    others = [publish(store, verdict) for name, verdict in verdicts.items() if name != first]
    return night_answer(store, night, otherwise=otherwise, heading=heading, fields=fields, others=others)


def _has_changed(verdict: SeriesVerdict) -> bool:
    # A case without a figure tonight may have become worse before.
    is_missed = verdict.state == "missed" and bool(verdict.analysis.changes)
    return is_missed or verdict.drift_is_new or verdict.state in ("regressed", "pending", "known")


def _warn_of_others(history: History, experiment: str, nights: Sequence[Night]) -> None:
    others = Counter(night.experiment for night in nights if night.experiment != experiment)
    for name, count in others.items():
        belong = "night belongs" if count == 1 else "nights belong"
        output.warn(f"{count} {belong} to {name}, not to {experiment}; see {live_page(history, name)}")


def _stamp(path: Path) -> None:
    try:
        with os.fdopen(open_to_write(path), "rb") as stamp:
            os.utime(stamp.fileno())
    except (OSError, StoreError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        output.warn(f"{path} cannot be written ({why}); Compose checks its age")


def _way_out(store: Path, folder: Path, experiment: str, arguments: Sequence[str]) -> str:
    if not (folder / RUN_FILE).is_file():
        return "no night was added; run the command again"
    # The folder has the experiment with all settings of the command line.
    run = ("run", str(folder / EXPERIMENT), "--out", str(folder), "--resume", *arguments)
    add = ("nightly", "import", experiment, str(folder), "--store", str(store))
    commands = ", then ".join(f"`{shlex.join(('stratbench', *words))}`" for words in (run, add))
    return f"the night is not in the history yet; add it with {commands}"


def _require_space(store: Path) -> None:
    free_bytes = shutil.disk_usage(store).free
    if free_bytes < _LEAST_FREE_BYTES:
        free = f"{free_bytes >> 20} MiB free in {store}"
        raise MissingError(
            f"a night needs {_LEAST_FREE_BYTES >> 20} MiB of disk, got {free}; free space or lower --keep",
            field="store",
        )
