"""`stratbench nightly`: an experiment night after night, and what has changed since."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from harness.cli import options
from harness.cli.options import Debug, Json, duration_s
from harness.cli.output import Answer
from harness.cli.process import NoIsolation, RequireIsolation, command_of, is_watched, isolate_workers
from harness.errors import UsageError
from harness.measure.timeouts import timeouts
from harness.requests import RunOptions

EXAMPLE = "stratbench nightly quickstart --store nightly --time-budget 30m"


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
            "--ack",
            metavar="CASE",
            help="Run nothing; note that what has changed of a case is known, replays of earlier nights "
            "included, and write the page anew.",
        ),
    ] = None,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Why it is known, with --ack.")
    ] = None,
    replay: Annotated[
        str | None,
        typer.Option(
            "--replay",
            metavar="DATE",
            help="Run nothing; say again what that night said, an earlier one on a page of its own.",
        ),
    ] = None,
    import_: Annotated[
        list[Path] | None,
        typer.Option(
            "--import",
            metavar="PATH",
            help="Run nothing; add run folders and files of pytest-benchmark, each as the night of its date.",
        ),
    ] = None,
    bisect: Annotated[
        str | None,
        typer.Option(
            "--bisect",
            metavar="CASE",
            help="Add no night; run a case that has regressed at commits, and say which it came with.",
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at", metavar="HH:MM", help="Stay, and add a night every day at this time, until interrupted."
        ),
    ] = None,
    keep: Annotated[
        int, typer.Option("--keep", metavar="N", min=1, help="Run folders that stay; figures all do.")
    ] = 60,
    prometheus: Annotated[
        Path | None,
        typer.Option(
            "--prometheus",
            metavar="FILE",
            help="Also write what the night says for the textfile collector of Prometheus' node_exporter.",
        ),
    ] = None,
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
    _refuse_contradictions(options.given(context))
    if prometheus is not None:
        from harness.cli.nightly.publishing import require_writable

        require_writable(prometheus)
    if ack is not None or replay is not None or import_:
        from harness.cli.nightly.nights import name_in_history

        name = name_in_history(experiment, settings or ())
        return _stored(
            store, name, ack, reason, replay, import_ or (), confirm=confirm, prometheus=prometheus
        )
    from harness.experiment.load import load_experiment

    spec = load_experiment(experiment, settings=settings or (), surroundings=os.environ)
    budget_s = None if time_budget is None else duration_s(time_budget, field="time-budget")
    if bisect is not None:
        from harness.cli.nightly.bisection import bisect as bisected

        return bisected(
            store,
            spec,
            bisect,
            confirm=confirm,
            budget_s=budget_s,
            run_options=_run_options(timeout_factor, no_isolation=no_isolation, require=require_isolation),
            environ=os.environ,
        )
    if at is not None:
        _stay(context, at)
    exposure = isolate_workers(
        context, spec.cluster.provider, no_isolation=no_isolation, require_isolation=require_isolation
    )
    from harness.cli.nightly.nights import judged_night
    from harness.cli.nightly.publishing import night_answer, publish
    from harness.host_facts import allowed

    run_options = RunOptions(
        time_budget_s=budget_s,
        timeouts=timeouts(timeout_factor),
        records_mistakes=True,
        quiet=json,
        live=is_watched(context),
        exposure=exposure,
        environ=allowed(os.environ),
        command=command_of(context),
    )
    verdict, outcome = judged_night(store, spec, run_options, confirm=confirm, keep=keep)
    night = publish(store, verdict, prometheus=prometheus)
    return night_answer(store, night, otherwise=outcome.exit_status)


def _stored(
    store: Path,
    experiment: str,
    ack: str | None,
    reason: str | None,
    replay: str | None,
    imports: Sequence[Path],
    *,
    confirm: int,
    prometheus: Path | None,
) -> Answer:
    """What needs no run."""
    from harness.cli.nightly.nights import acknowledged, imported, replayed

    if ack is not None:
        return acknowledged(store, experiment, ack, reason or "", confirm=confirm, prometheus=prometheus)
    if replay is not None:
        return replayed(store, experiment, replay, confirm=confirm, prometheus=prometheus)
    return imported(store, experiment, imports, confirm=confirm, prometheus=prometheus)


def _stay(context: typer.Context, at: str) -> NoReturn:
    """Run this command without `--at` at an hour of every day, in a process of its own each time."""
    from harness.cli.nightly.schedule import arguments_of, every_day, hour_of, sleep_until
    from harness.processes import run_stratbench

    arguments = arguments_of(context, without="at")
    every_day(hour_of(at), partial(run_stratbench, arguments), wait_until=sleep_until)


def _run_options(timeout_factor: float, *, no_isolation: bool, require: bool) -> tuple[str, ...]:
    """Options of `stratbench run` that mean what those of this command do; no more than were given."""
    return (
        *(("--timeout-factor", str(timeout_factor)) if timeout_factor != 1 else ()),
        *(("--no-isolation",) if no_isolation else ()),
        *(("--require-isolation",) if require else ()),
    )


_ALWAYS = frozenset(("store", "set", "debug", "require-isolation", "no-isolation"))
_READS: dict[str, frozenset[str]] = {
    "ack": frozenset(("reason", "confirm", "prometheus", "json")),
    "replay": frozenset(("confirm", "prometheus", "json")),
    "import": frozenset(("confirm", "prometheus", "json")),
    "bisect": frozenset(("time-budget", "timeout-factor", "confirm", "json")),
    "at": frozenset(("time-budget", "timeout-factor", "confirm", "keep", "prometheus")),
}
"""Options that ask for something else than a night → those that go with them beside what always does."""


def _refuse_contradictions(given: Sequence[str]) -> None:
    """Refuse options that say nothing to each other.

    Args:
        given: names of options.
    """
    ways = [name for name in given if name in _READS]
    if ("ack" in ways) != ("reason" in given):
        raise UsageError("must be given with --ack, and --ack with it", field="reason")
    if len(ways) > 1:
        raise UsageError(f"must not be given with --{ways[1]}; drop one", field=ways[0])
    for way in ways:
        for name in given:
            if name not in (way, *_READS[way], *_ALWAYS):
                raise UsageError(f"must not be given with --{way}; drop one", field=name)
