"""`stratbench nightly`: an experiment run every night, and changes between nights."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from harness.cli import options, output
from harness.cli.help import CommandGroup
from harness.cli.options import HistoryOptions, duration_s, with_options
from harness.cli.output import Answer
from harness.cli.output_files import output_file
from harness.cli.process import WorkerOptions, isolate, run_options
from harness.errors import UsageError

if TYPE_CHECKING:
    from typer import Context

    from harness.experiment.model import Experiment


def _writable(path: Path | None) -> Path | None:
    """Refuse a file that cannot be written, before anything is done."""
    return None if path is None else output_file(path, field="prometheus")


Prometheus = Annotated[
    Path | None,
    typer.Option(
        "--prometheus",
        metavar="FILE",
        callback=_writable,
        help="Also write metrics for the textfile collector of node_exporter.",
    ),
]
CaseArgument = Annotated[
    str, typer.Argument(metavar="CASE", help='A case id, a strategy, or "WORKLOAD STRATEGY".')
]


def run(
    context: typer.Context,
    history: HistoryOptions,
    *,
    time_budget: options.TimeBudget = None,
    keep: Annotated[
        int,
        typer.Option(
            "--keep", metavar="N", min=1, help="Keep the newest N run folders; the history keeps all figures."
        ),
    ] = 60,
    prometheus: Prometheus = None,
    worker_options: WorkerOptions,
) -> Answer:
    """Run an experiment, add it to the history, and report regressions.

    Exit status 4 if something got worse.
    """
    spec = _experiment(history)
    budget_s = _budget_s(time_budget)
    exposure = isolate(context, worker_options, providers=spec.cluster.provider)
    from harness.cli.nightly import nights

    how = run_options(
        context, worker_options, exposure=exposure, time_budget_s=budget_s, records_mistakes=True
    )
    return nights.run(
        history, spec, how, keep=keep, prometheus=prometheus, arguments=worker_options.arguments
    )


def import_(
    history: HistoryOptions,
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Run folders, or JSON files of pytest-benchmark.")
    ],
    *,
    prometheus: Prometheus = None,
) -> Answer:
    """Add existing runs to the history, under their dates."""
    from harness.cli.nightly import nights

    return nights.import_runs(history, paths, prometheus=prometheus)


def ack(
    history: HistoryOptions,
    case: CaseArgument,
    *,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Reason, shown in reports.", show_default=False)
    ],
    prometheus: Prometheus = None,
) -> Answer:
    """Acknowledge a change, so that it is not reported again."""
    from harness.cli.nightly import nights

    return nights.acknowledge(history, case, reason, prometheus=prometheus)


def replay(
    history: HistoryOptions,
    night: Annotated[str, typer.Argument(metavar="DATE", help="Date of the night, such as 2026-11-20.")],
    *,
    prometheus: Prometheus = None,
) -> Answer:
    """Report the changes of a stored night again."""
    from harness.cli.nightly import nights

    return nights.replay(history, night, prometheus=prometheus)


def bisect(
    history: HistoryOptions,
    case: CaseArgument,
    *,
    time_budget: options.TimeBudget = None,
    worker_options: WorkerOptions,
) -> Answer:
    """Find the commit of a slowdown by running its case at commits.

    Regressions in bytes or memory are not searched: `nightly replay` lists their commits.
    """
    from harness.cli.nightly import bisection

    return bisection.bisect(
        history,
        _experiment(history),
        case,
        budget_s=_budget_s(time_budget),
        run_options=worker_options.arguments,
        environ=os.environ,
    )


def trend(history: HistoryOptions) -> Answer:
    """Write the trend page of the newest night."""
    from harness.cli.nightly import nights

    return nights.write_page(history)


def serve(
    context: typer.Context,
    *,
    at: Annotated[
        str, typer.Option("--at", metavar="HH:MM", help="Start time of each night.", show_default=False)
    ],
) -> NoReturn:
    """Run a night every day until interrupted."""
    from harness.cli.nightly.schedule import arguments_of, every_day, hour_of, sleep_until
    from harness.processes import run_stratbench

    arguments = ["nightly", "run", *arguments_of(context, without="at")]
    every_day(hour_of(at), partial(run_stratbench, arguments), wait_until=sleep_until)


COMMANDS: tuple[tuple[str, Callable[..., Answer], str], ...] = (
    ("run", run, "stratbench nightly run quickstart --store nightly --time-budget 30m"),
    ("import", import_, "stratbench nightly import quickstart runs/quickstart-1 --store nightly"),
    ("ack", ack, 'stratbench nightly ack quickstart ps --reason "a slower lock" --store nightly'),
    ("replay", replay, "stratbench nightly replay quickstart 2026-11-20 --store nightly"),
    ("bisect", bisect, 'stratbench nightly bisect quickstart "digits-cnn ps" --store nightly'),
    ("trend", trend, "stratbench nightly trend quickstart --store nightly"),
    (
        "serve",
        with_options(serve, list(signature(with_options(run)).parameters.values())),
        "stratbench nightly serve quickstart --store nightly --at 02:30",
    ),
)
_FORMER = {"--ack": "ack", "--replay": "replay", "--import": "import", "--bisect": "bisect", "--at": "serve"}
"""Option of the previous release → the sub-command that replaces it."""
_OF_RUNS = ("--no-isolation", "--require-isolation")


class Nightly(CommandGroup):
    """Group of sub-commands; it also accepts the previous release's command line, without any."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Read the name of the sub-command."""
        is_named = not args or args[0] in (*self.commands, "-h", "--help")
        # Two words without an option between them are a misspelt sub-command and its argument.
        if not is_named and (args[0].startswith("-") or args[1:2] == [] or args[1].startswith("-")):
            args = current_arguments(args)
            output.warn(f"deprecated; use `stratbench nightly {args[0]} …`")
        rest: list[str] = super().parse_args(ctx, args)
        return rest


def current_arguments(former: Sequence[str]) -> list[str]:
    """Translate arguments of `nightly` from before it had sub-commands.

    Raises:
        UsageError: they request several sub-commands at once.
    """
    rest = list(former)
    values: list[str] = []
    names: list[str] = []
    for index in range(len(former) - 1, -1, -1):
        name, is_joined, value = former[index].partition("=")
        if name not in _FORMER or (not is_joined and index + 1 == len(rest)):
            continue
        names.insert(0, name)
        values.insert(0, value if is_joined else rest[index + 1])
        del rest[index : index + (1 if is_joined else 2)]
    if len(set(names)) > 1:
        first, second = dict.fromkeys(names)
        raise UsageError(f"must not be given with {second}; drop one", field=first.removeprefix("--"))
    if not names:
        return ["run", *rest]
    if names[0] == "--at":
        return ["serve", *rest, *(text for value in values for text in ("--at", value))]
    if names[0] != "--bisect":
        rest = [argument for argument in rest if argument not in _OF_RUNS]
    return [_FORMER[names[0]], *rest, "--", *values]


def _experiment(history: HistoryOptions) -> Experiment:
    from harness.experiment.load import load_experiment

    return load_experiment(history.experiment, settings=history.settings or (), surroundings=os.environ)


def _budget_s(time_budget: str | None) -> float | None:
    return None if time_budget is None else duration_s(time_budget, field="time-budget")
