"""`stratbench run`: an experiment, from its file to its report, or the table of a dry run."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli import options, output
from harness.cli.options import duration_s, plan_reference
from harness.cli.output import Answer
from harness.cli.process import WorkerOptions, isolate, run_options
from harness.errors import UsageError

if TYPE_CHECKING:
    from harness.experiment.cases import Case
    from harness.experiment.model import Experiment
    from harness.pipeline import RunOutcome


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedTable:
    """Headings, a row for each case, and a line with totals."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    total: str


def planned_table(planned: RunOutcome) -> PlannedTable:
    """Table of a dry run's cases; columns of shapes, links and computations only if these differ.

    Args:
        planned: outcome with at least one case.
    """
    cases, n_repeats, skipped, until = planned.cases, planned.n_repeats, planned.skipped, planned.until_ci
    more = "" if until is None else f", and more until ratios are known within ±{100 * until:g} %"
    left_out = f", of which {len(skipped)} will be skipped" if skipped else ""
    n_left = {case.id: planned.n_left(case) for case in cases}
    n_done = (len(cases) - len(skipped)) * n_repeats - sum(n_left.values())
    done = f", {n_done} done" if n_done else ""
    swept = [item for item in _IF_SWEPT if len({item[1](case) for case in cases}) > 1]
    unusual = [item for item, usual in _IF_UNUSUAL if {item[1](case) for case in cases} != {usual}]
    columns = [*_ALWAYS, *swept, *unusual]
    return PlannedTable(
        columns=(*(name for name, _ in columns), "repeats"),
        rows=tuple(
            (
                *(cell(case) for _, cell in columns),
                "skipped" if case.id in skipped else str(n_left[case.id] or "done"),
            )
            for case in cases
        ),
        total=f"{_counted(len(cases), 'case')}{left_out}, {_counted(n_repeats, 'repeat')} of each{done}: "
        f"{sum(n_left.values())} to run{more}",
    )


def _counted(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def _memory(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else f"{size_bytes / 2**30:g} GiB"


def _links(case: Case) -> str:
    rates = ["no limit" if limit is None else f"{limit.rate_mbit:g} Mbit/s" for limit in case.shape.links]
    burst = "" if case.shape.link.burst_kb is None else f", burst {case.shape.link.burst_kb} kB"
    return (rates[0] if len(set(rates)) == 1 else ", ".join(rates)) + burst


_ALWAYS: tuple[tuple[str, Callable[[Case], str]], ...] = (
    ("workload", lambda case: str(case.workload)),
    ("strategy", lambda case: str(case.strategy)),
    ("workers x replicas", lambda case: f"{case.shape.workers} x {case.shape.replicas_per_worker}"),
)
_IF_SWEPT: tuple[tuple[str, Callable[[Case], str]], ...] = (
    ("provider", lambda case: case.shape.provider),
    ("device", lambda case: case.shape.device),
    ("cores per worker", lambda case: str(case.shape.cores_per_worker)),
    ("memory per worker", lambda case: _memory(case.shape.memory_bytes)),
    ("links", _links),
    ("image", lambda case: case.shape.image or "-"),
)
_IF_UNUSUAL: tuple[tuple[tuple[str, Callable[[Case], str]], str], ...] = (
    (("precision", lambda case: case.computation.precision), "float32"),
    (("XLA", lambda case: "yes" if case.computation.xla else "no"), "no"),
    (("TF32", lambda case: "off" if case.computation.tf32 is False else "-"), "-"),
    (("may share GPUs", lambda case: "yes" if case.shape.share_gpus else "no"), "no"),
    (("faults", lambda case: case.scenario.name or "-"), "-"),
)
"""Column → value that needs no column if all cases have it."""


EXAMPLE = "stratbench run quickstart --strategies single,none,ps,all-reduce:chunk_size=16"


def run(
    context: typer.Context,
    experiment: options.ExperimentArgument,
    *,
    plan: Annotated[
        str | None,
        typer.Option("--plan", metavar="FILE", help="Also run an edited plan of `stratbench plan --json`."),
    ] = None,
    settings: options.Settings = None,
    out: options.OutFolder = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the interrupted run in --out.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the cases and exit.")] = False,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop at the first failed case.")] = False,
    time_budget: options.TimeBudget = None,
    metrics_port: Annotated[
        int,
        typer.Option(
            "--metrics-port",
            metavar="PORT",
            envvar="STRATBENCH_METRICS_PORT",
            show_envvar=False,
            min=0,
            max=65535,
            help="Serve Prometheus metrics on 127.0.0.1:PORT; 0: off.",
        ),
    ] = 0,
    worker_options: WorkerOptions,
) -> Answer:
    """Measure strategies on workloads and write a report.

    Each case runs on new workers, is checked for correctness, timed and recorded.
    """
    if resume and out is None:
        raise UsageError("must be used with --out, which names the run to continue", field="resume")
    return measured(
        context,
        _experiment(context, experiment, settings or (), plan),
        worker_options,
        metrics_port=metrics_port,
        out=out,
        resume=resume,
        dry_run=dry_run,
        fail_fast=fail_fast,
        time_budget_s=None if time_budget is None else duration_s(time_budget, field="time-budget"),
    )


def measured(
    context: typer.Context,
    spec: Experiment,
    worker_options: WorkerOptions,
    *,
    metrics_port: int = 0,
    dry_run: bool = False,
    **own: Any,  # noqa: ANN401 - fields of the options
) -> Answer:
    """Run an experiment on workers of this command.

    Args:
        own: further fields of `RunOptions`.
    """
    from harness.measure.prometheus import listen
    from harness.preflight import check_experiment

    # A socket stays in the network in which it was opened.
    metrics = listen(metrics_port) if metrics_port and not dry_run else None
    exposure = None if dry_run else isolate(context, worker_options, providers=spec.cluster.provider)
    check_experiment(spec)
    options_of_run = run_options(
        context, worker_options, exposure=exposure, dry_run=dry_run, metrics=metrics, **own
    )
    from harness import pipeline

    outcome = pipeline.run(spec, options_of_run)
    # Warn only after success: a user's mistake prints nothing else.
    for note in spec.notes:
        output.warn(note)
    return Answer(
        document=outcome.to_document(), show=partial(_show, outcome), exit_status=outcome.exit_status
    )


def _experiment(context: typer.Context, name: str, settings: Sequence[str], plan: str | None) -> Experiment:
    """Experiment of a file, with the values of the command line."""
    from harness.cli.file_options import values_of_options
    from harness.experiment.load import load_experiment

    overrides = values_of_options(context)
    sets_until = "measure.until.ratio_ci" in overrides or any(map(_sets_until, settings))
    if "measure.repeats" in overrides and not sets_until:
        overrides = {**overrides, "measure.until": None}  # exactly so many
    return load_experiment(
        name,
        settings=settings,
        overrides=overrides,
        plan=None if plan is None else plan_reference(plan),
        surroundings=os.environ,
    )


def _sets_until(setting: str) -> bool:
    return setting.partition("=")[0].strip().startswith("measure.until")


def _show(outcome: RunOutcome) -> None:
    for note in outcome.notes:
        output.print_line(note)
    if outcome.cases:
        planned = planned_table(outcome)
        output.table(planned.columns, planned.rows)
        output.print_line()
        output.print_line(planned.total)
    if outcome.run_dir is None:
        return
    if outcome.report is not None:
        output.print_text(f"{outcome.report.text}\n\n")
    counts = (
        (outcome.n_ok, "ok"),
        (outcome.n_failed, "failed"),
        (outcome.n_skipped, "skipped"),
        (outcome.n_implausible, "implausible"),
    )
    output.print_line(f"repeats: {', '.join(f'{count} {word}' for count, word in counts if count) or 'none'}")
    if outcome.checkpoints:
        n_more = len(outcome.checkpoints) - 1
        output.print_line(f"checkpoint: {outcome.checkpoints[0]}{f', and {n_more} more' if n_more else ''}")
    output.print_line(f"run folder: {outcome.run_dir}")
    if outcome.report is not None and outcome.report.path is not None:
        output.print_line(f"report: {outcome.report.path}")
