"""Nights of a history: run, imported, replayed, and what is known of their changes."""

from __future__ import annotations

import os
import shlex
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path

from harness import pipeline
from harness.cli import output
from harness.cli.nightly.publishing import (
    answer_in_lines,
    live_page,
    night_answer,
    nights_of,
    prometheus_for,
    publish,
)
from harness.cli.options import HistoryOptions
from harness.cli.output import Answer
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
"""File of a store that a night touches once it is in the history, and nothing else does."""
_LEAST_FREE_BYTES = 1 << 30
_EXPERIMENT_FILES = (".yaml", ".yml")


def run(
    given: HistoryOptions,
    spec: Experiment,
    options: RunOptions,
    *,
    keep: int,
    prometheus: Path | None,
    arguments: Sequence[str] = (),
) -> Answer:
    """Run an experiment, add it to a history, judge it, and remove run folders that are too old.

    Args:
        options: of the run; its folder is one of the store.
        keep: run folders that stay.
        arguments: of the command line for workers, with which an interrupted run goes on.
    """
    store = given.store
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
        night = history.add(run_night(folder, tell=output.warn))
        _stamp(store / STAMP)
        verdict = verdict_of(history, night, confirm=given.confirm)
        remove_old_runs(store / RUNS, keep)
    return night_answer(store, publish(store, verdict, prometheus=prometheus), otherwise=outcome.exit_status)


def import_runs(given: HistoryOptions, paths: Sequence[Path], *, prometheus: Path | None) -> Answer:
    """Add run folders and files of pytest-benchmark as nights, and report on the newest.

    The experiment that was named is reported in full, if one of its nights was imported; else that of the
    last path.
    """
    store, experiment = given.store, name_in_history(given)
    new = _new_nights(paths)
    imports = []
    with writing(store, clock=partial(datetime.now, UTC)) as history:
        for _, each in new:  # all, before the first is added
            history.require_begun(each.started_utc)
        for path, each in new:
            before = history.checksums()
            night = history.add(each)
            is_same = before.get(night.id) == history.checksums()[night.id]
            what = "already in the history: " if is_same else "replaced the stored night: "
            output.warn(f"{night.name}: {what if night.id in before else ''}{path}")
            imports.append(night)
        _warn_of_others(history, experiment, imports)
        verdicts = _newest_verdicts(history, {night.experiment for night in imports}, given.confirm)
    answered = _Answered(store=store, verdicts=verdicts, named=experiment, prometheus=prometheus)
    is_damaged = any(each.is_damaged for _, each in new)
    return answered.answer(imports[-1].experiment, otherwise=EXIT_CASE if is_damaged else EXIT_OK)


def acknowledge(given: HistoryOptions, case: str, reason: str, *, prometheus: Path | None) -> Answer:
    """Note that what has changed of a case is known, and report on the newest night again.

    The experiment that was named is reported in full, if the case is one of its.

    Args:
        case: its id, a strategy, or workload and strategy.
    """
    if not reason.strip():
        raise UsageError("must say why the change is accepted, got nothing", field="reason")
    store, experiment = given.store, name_in_history(given)
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
        before = _newest_verdicts(history, {night.experiment for night in nights}, given.confirm)
        changed = {name: [each for each in of.series if _has_changed(each)] for name, of in before.items()}
        concerned = {
            name
            for name, series in changed.items()
            if any(case in names_of(each.series.subject) for each in series)
        }
        if not concerned:
            all_changed = sorted(
                {names_of(each.series.subject)[-1] for series in changed.values() for each in series}
            )
            hint = f"changed are {', '.join(all_changed)}" if all_changed else "no other case has changed"
            raise UsageError(
                f"must be a case that has changed, got {case!r}: nothing to acknowledge; {hint}", field="ack"
            )
        until = nights[-1]
        history.acknowledge(case, until=until, reason=reason)
        verdicts = _newest_verdicts(history, concerned, given.confirm)
    answered = _Answered(store=store, verdicts=verdicts, named=experiment, prometheus=prometheus)
    answer = answered.answer(
        min(verdicts),
        heading=[f"acknowledged: changes of {case} up to {until.name}: {reason}"],
        fields={"case": case, "until": until.name, "reason": reason},
    )
    # The acknowledgement succeeded, whatever else has got worse.
    return replace(answer, exit_status=EXIT_OK)


def replay(given: HistoryOptions, name: str, *, prometheus: Path | None) -> Answer:
    """Report again on a night."""
    store, experiment = given.store, name_in_history(given)
    with reading(store) as history:
        night = night_named(history, name, experiment=experiment)
        verdict = verdict_of(history, night, confirm=given.confirm)
    return night_answer(store, publish(store, verdict, prometheus=prometheus), otherwise=EXIT_OK)


def write_page(given: HistoryOptions) -> Answer:
    """Write the trend page of an experiment's newest night.

    Raises:
        UsageError: the history has none.
    """
    store, experiment = given.store, name_in_history(given)
    with reading(store) as history:
        night = nights_of(history, experiment, field="trend")[-1]
        verdict = verdict_of(history, night, confirm=given.confirm)
    report = publish(store, verdict).report
    return answer_in_lines(
        [] if report is None else [f"report: {report}"],
        document={"store": str(store), "night": night.name, "report": report and str(report)},
        exit_status=EXIT_OK if report else EXIT_CASE,
    )


def name_in_history(given: HistoryOptions) -> str:
    """Name of an experiment's nights: what its file says, or the name itself where there is no file.

    Raises:
        UsageError: it is a path without a usable file.
    """
    experiment = given.experiment
    try:
        return load_experiment(experiment, settings=given.settings or ()).name
    except UsageError:
        if experiment.endswith(_EXPERIMENT_FILES) or "/" in experiment or Path(experiment).is_file():
            raise
        return experiment


def night_named(history: History, name: str, *, experiment: str) -> Night:
    """The night of an experiment that has a name.

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
    asked = _date_and_number(name)
    if asked is None:
        return f"{span}, each named by its date"
    before = [night for night in nights if (_date_and_number(night.name) or asked) < asked]
    newest = f"the newest before it is {before[-1].name}" if before else f"the first is {nights[0].name}"
    return f"{newest}; {span}"


def _date_and_number(name: str) -> tuple[date, int] | None:
    day, _, number = name.partition(".")
    try:
        return date.fromisoformat(day), int(number or 1)
    except ValueError:
        return None


def _new_nights(paths: Sequence[Path]) -> Sequence[tuple[Path, NewNight]]:
    """A night of each path; a file of benchmarks without a usable one is left out, with a line.

    Raises:
        HistoryError: a path is no run folder and no such file, or nothing of any can be used.
    """
    nights: list[tuple[Path, NewNight]] = []
    unusable: list[NothingUsableError] = []
    for path in paths:
        read = benchmarks_night if path.is_file() else run_night
        try:
            nights.append((path, read(path, tell=output.warn)))
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


@dataclass(frozen=True, kw_only=True, slots=True)
class _Answered:
    """Verdicts on the newest nights of several experiments, by name, and the experiment asked for."""

    store: Path
    verdicts: Mapping[str, NightVerdict]
    named: str
    prometheus: Path | None

    def answer(
        self,
        otherwise_shown: str,
        *,
        otherwise: int = EXIT_OK,
        heading: Sequence[str] = (),
        fields: Mapping[str, object] | None = None,
    ) -> Answer:
        """Publish all nights, and report on one in full, on the others in a line each."""
        shown = self.named if self.named in self.verdicts else otherwise_shown
        file = prometheus_for(self.prometheus, named=self.named, shown=shown)
        night = publish(self.store, self.verdicts[shown], prometheus=file)
        others = [publish(self.store, verdict) for name, verdict in self.verdicts.items() if name != shown]
        return night_answer(
            self.store, night, otherwise=otherwise, heading=heading, fields=fields, others=others
        )


def _has_changed(verdict: SeriesVerdict) -> bool:
    # What is missed tonight may have got worse before.
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
    # The folder has the experiment with all that was set on the command line.
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
