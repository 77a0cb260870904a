"""`stratbench nightly`: an experiment night after night, and what has changed since."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.canonical import slug
from harness.cli import options, output
from harness.cli.answer import Answer
from harness.cli.isolation import NoIsolation, RequireIsolation, isolate_workers
from harness.cli.options import Debug, Json, duration_s
from harness.errors import EXIT_OK, EXIT_REGRESSION, Interrupted, MissingError, UsageError
from harness.measure.timeouts import timeouts
from harness.requests import RunOptions, RunOutcome

if TYPE_CHECKING:
    from reports.history.store import History, Night
    from reports.history.verdicts import NightVerdict, SeriesVerdict

EXAMPLE = "stratbench nightly quickstart --store nightly --time-budget 30m"
_LEAST_FREE_BYTES = 1 << 30


def nightly(
    context: typer.Context,
    experiment: options.ExperimentArgument,
    *,
    store: Annotated[
        Path, typer.Option("--store", metavar="DIR", help="The history, made if need be.", show_default=False)
    ],
    time_budget: options.TimeBudget = None,
    confirm: Annotated[
        int,
        typer.Option("--confirm", metavar="K", min=3, max=30, help="Nights that a change must last."),
    ] = 3,
    ack: Annotated[
        str | None,
        typer.Option(
            "--ack", metavar="CASE", help="Run nothing; note that what has changed of a case is known."
        ),
    ] = None,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Why it is known, with --ack.")
    ] = None,
    replay: Annotated[
        str | None,
        typer.Option("--replay", metavar="DATE", help="Run nothing; say again what that night said."),
    ] = None,
    import_: Annotated[
        list[Path] | None,
        typer.Option(
            "--import",
            metavar="PATH",
            help="Run nothing; add run folders and files of pytest-benchmark, each as the night of its date.",
        ),
    ] = None,
    keep: Annotated[
        int, typer.Option("--keep", metavar="N", min=1, help="Run folders that stay; figures all do.")
    ] = 60,
    settings: options.Settings = None,
    timeout_factor: options.TimeoutFactor = 1.0,
    require_isolation: RequireIsolation = False,
    no_isolation: NoIsolation = False,
    json: Json = False,
    debug: Debug = False,  # noqa: ARG001 - read by main
) -> Answer:
    """Run an experiment, add it to a history, and say what has changed; status 4 where something got worse.

    \f
    Each option is a parameter, as Typer reads them.
    """
    if (ack is None) != (reason is None):
        raise UsageError("must be given with --ack, and --ack with it", field="reason")
    asked = [name for name, value in (("ack", ack), ("replay", replay), ("import", import_)) if value]
    if len(asked) > 1:
        raise UsageError(f"must not be given with --{asked[1]}; drop one", field=asked[0])
    if ack is not None and reason is not None:
        return _acknowledged(store, ack, reason)
    if replay is not None:
        return _replayed(store, replay, confirm)
    if import_:
        return _imported(store, import_, confirm)
    from harness.experiment.resolve import load_experiment
    from harness.host_facts import allowed
    from harness.preflight import check_experiment

    spec = load_experiment(experiment, settings=settings or (), surroundings=os.environ)
    budget_s = None if time_budget is None else duration_s(time_budget, field="time-budget")
    exposure = isolate_workers(
        context, spec.cluster.provider, no_isolation=no_isolation, require_isolation=require_isolation
    )
    check_experiment(spec)
    from harness import pipeline

    def run(folder: Path) -> RunOutcome:
        return pipeline.run(
            spec,
            RunOptions(
                out=folder,
                time_budget_s=budget_s,
                timeouts=timeouts(timeout_factor),
                quiet=json,
                live=options.is_watched(json=json),
                exposure=exposure,
                environ=allowed(os.environ),
            ),
        )

    return _run(store, str(spec.name), run, confirm=confirm, keep=keep)


def _run(
    store: Path, experiment: str, run: Callable[[Path], RunOutcome], *, confirm: int, keep: int
) -> Answer:
    """One night: run, write, judge, and remove what is too old."""
    from harness.records.retention import remove_old_runs
    from reports.history.night import added
    from reports.history.store import RUNS, writing
    from reports.history.verdicts import verdict_of

    with writing(store) as history:
        _require_space(store)
        folder = store / RUNS / _folder_name(experiment)
        try:
            outcome = run(folder)
        except Interrupted:
            again = f"`stratbench run EXPERIMENT --out {folder} --resume`, then `nightly --import {folder}`"
            raise Interrupted(
                f"interrupted; the night is not in the history: {again}, or begin anew"
            ) from None
        night = added(history, folder, tell=output.warn)
        verdict = verdict_of(history, night, confirm=confirm)
        remove_old_runs(store / RUNS, keep)
    return _answer(store, verdict, otherwise=outcome.exit_status)


def _folder_name(experiment: str) -> str:
    return f"{slug(experiment)}-{datetime.now(UTC):%Y%m%dt%H%M%Sz}-{secrets.token_hex(4)}"


def _acknowledged(store: Path, case: str, reason: str) -> Answer:
    from reports.history.store import writing
    from reports.history.verdicts import names_of
    from strategies.errors import suggestion

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
    told = f"known from now on: what has changed of {case} up to {last.name}: {reason}"
    return Answer(document=document, show=partial(output.say, told))


def _imported(store: Path, paths: Sequence[Path], confirm: int) -> Answer:
    from reports.history.benchmarks import added_benchmarks
    from reports.history.night import added
    from reports.history.store import writing
    from reports.history.verdicts import verdict_of

    with writing(store) as history:
        for path in paths:
            is_run = not path.is_file()
            night = added(history, path, tell=output.warn) if is_run else added_benchmarks(history, path)
            output.warn(f"{night.name}: {path}")
        return _answer(store, verdict_of(history, night, confirm=confirm), otherwise=EXIT_OK)


def _replayed(store: Path, name: str, confirm: int) -> Answer:
    from reports.history.store import reading
    from reports.history.verdicts import verdict_of

    with reading(store) as history:
        return _answer(store, verdict_of(history, _named(history, name), confirm=confirm), otherwise=EXIT_OK)


def _named(history: History, name: str) -> Night:
    from strategies.errors import suggestion

    nights = {night.name: night for night in history.nights()}
    if name not in nights:
        raise UsageError(
            f"must be a night of the history, got {name!r}; {suggestion(name, nights)}", field="replay"
        )
    return nights[name]


def _answer(store: Path, verdict: NightVerdict, *, otherwise: int) -> Answer:
    from reports.history import wording

    lines = [wording.verdict_line(verdict), *wording.further_lines(verdict, _commits)]
    return Answer(
        document={"store": str(store), **wording.document_of(verdict, _commits), "report": None},
        show=partial(_show, lines),
        exit_status=EXIT_REGRESSION if verdict.regressed else otherwise,
    )


def _show(lines: Sequence[str]) -> None:
    for line in lines:
        output.say(line)


def _commits(verdict: SeriesVerdict) -> tuple[str, ...]:
    """What was changed in the code between the nights before and after a change."""
    from harness.host_facts import commits_between

    earlier = verdict.before.git_sha if verdict.before else None
    later = verdict.since.git_sha if verdict.since else None
    return commits_between(earlier, later) if earlier and later and earlier != later else ()


def _require_space(store: Path) -> None:
    import shutil

    free_bytes = shutil.disk_usage(store).free
    if free_bytes < _LEAST_FREE_BYTES:
        free = f"{free_bytes >> 20} MiB free in {store}"
        raise MissingError(
            f"a night needs {_LEAST_FREE_BYTES >> 20} MiB of disk, got {free}; make room, or lower --keep",
            field="store",
        )
