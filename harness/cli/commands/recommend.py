"""`stratbench recommend`: the plan that serves a goal best, on workers that you may not have."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.canonical import slug
from harness.cli import options, output
from harness.cli.output import Answer
from harness.cli.output_files import output_file
from harness.cli.prediction_options import ProbeFile, experiment_of, n_workers, rate_mbit, run_folder
from harness.cli.process import WorkerOptions, isolate, run_options
from harness.errors import StoreError, UsageError
from harness.prediction.goals import RULES, Aim, Goal
from harness.requests import RecommendRequest
from harness.written_values import kebab, scalar_text

if TYPE_CHECKING:
    from harness.experiment.model import Experiment
    from harness.experiment.references import StrategyRef
    from harness.prediction.recommendation import RankedPlan, Recommendation

EXAMPLE = "stratbench recommend wide-mlp --workers 64 --link 1gbit --goal fastest"
_FOR_PLANS = "quickstart"
"""Experiment with which a plan is measured later, if the recommendation names none."""
_UNTIL = {"ratio_ci": "3%", "at_most": "5m"}
"""Condition that ends the measurement of contenders, unless the experiment has one."""
_MEASURING: Mapping[str, object] = {
    "strategies": ["none"],
    "compare.baseline": None,
    "measure.trace": False,
    "measure.aa": False,
    "measure.observer": False,
    "measure.exposed_comm": False,
    "faults": [],
    "matrix": {},
}
"""Values of the experiment that measures contenders, whose strategies follow from predictions."""
_LEAST_WORKERS = 2
_MOST_TITLE = 44
"""Characters of a plan's title in the table."""


class Allowed(StrEnum):
    """Results that plans may have beside exact ones."""

    INEXACT = "inexact"


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchOptions:
    """Options of the search."""

    goal: Annotated[
        Goal,
        typer.Option(
            "--goal",
            help=f"{'; '.join(f'{goal}: {rule}' for goal, rule in RULES.items())}.",
        ),
    ] = Goal.FASTEST
    allow: Annotated[
        Allowed | None,
        typer.Option("--allow", help="inexact: also compressed gradients and local SGD."),
    ] = None
    strategies: Annotated[
        str | None,
        typer.Option(
            "--strategies",
            "-s",
            metavar="S,S…",
            help="Search from these; their parameters stay fixed [default: all that can be predicted].",
        ),
    ] = None
    seconds: Annotated[
        float,
        typer.Option("--seconds", metavar="S", min=1, max=10**6, help="Time limit of the search."),
    ] = 60
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Random seed of the search.")] = 0


def recommend(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            metavar="WORKLOAD|EXPERIMENT|RUN",
            help="A workload or an experiment, profiled first, or the folder of a run that has `none`.",
            show_default=False,
        ),
    ],
    *,
    workers: Annotated[
        str | None,
        typer.Option("--workers", "-w", metavar="N", help="Number of workers [default: the experiment's]."),
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(
            "--link",
            metavar="RATE",
            help="Rate of each worker's link, such as 1gbit or unlimited [default: the experiment's].",
        ),
    ] = None,
    search: SearchOptions,
    workload: Annotated[
        str | None,
        typer.Option("--workload", metavar="W", help="Workload, if the experiment or run has several."),
    ] = None,
    measure: Annotated[
        bool | None,
        typer.Option(
            "--measure/--no-measure",
            help="Measure the plans that predictions do not distinguish [default: if the experiment has such "
            "workers and links].",
            show_default=False,
        ),
    ] = None,
    probe: ProbeFile = None,
    settings: options.Settings = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write the plan here [default: in the run folder]."),
    ] = None,
    worker_options: WorkerOptions,
) -> Answer:
    """Recommend a plan for a workload.

    Plans are searched by their predicted steps, those that predictions do not distinguish are measured. The
    best one is written to a file for `stratbench run --plan`.
    """
    if out is not None:
        options.plan_reference(str(out), field="out")
    from harness.experiment.load import laid_over
    from harness.prediction.conditions import probing, profiling
    from harness.preflight import check_experiment

    strategies = _strategies(search.strategies)
    n = None if workers is None else _one_number(workers)
    rate = None if link is None else rate_mbit(link)
    profiled: Experiment | Path
    measuring = exposure = None
    run_dir, notes = _source_folder(source)
    if run_dir is not None:
        _refuse_for_runs(settings=settings, measure=measure)
        profiled = run_dir
        cluster = laid_over(experiment_of(run_dir), runs=False).cluster
    else:
        changes = settings or []
        document = _document(source, workload, changes)
        spec = _predictable(laid_over(document, settings=changes, surroundings=os.environ))
        n = max(spec.cluster.workers) if n is None else n
        rate = spec.cluster.link.rate_mbit[0] if link is None else rate
        profiled = profiling(document, settings=changes, surroundings=os.environ)
        cluster = profiled.cluster
        measuring = _measuring(document, spec, changes, n, rate, measure=measure)
        exposure = isolate(context, worker_options, providers=cluster.provider)
        check_experiment(profiled)
    if n is None or n < _LEAST_WORKERS:
        got = "none for a run folder" if n is None else n
        raise UsageError(f"must be {_LEAST_WORKERS} or more, got {got}; name a number", field="workers")
    request = RecommendRequest(
        source=profiled,
        workload=workload if run_dir is not None else None,
        aim=Aim(
            goal=search.goal,
            workers=n,
            link_mbit=rate,
            strategies=strategies,
            inexact=search.allow is Allowed.INEXACT,
            seconds=search.seconds,
            seed=search.seed,
        ),
        probe=probe,
        probing=probing(cluster, os.environ),
        measuring=measuring,
        experiment=_FOR_PLANS if run_dir is not None or _is_workload(source) else source,
        out=None if out is None else output_file(out, field="out"),
        options=run_options(context, worker_options, exposure=exposure),
    )
    from harness import foresight

    recommendation = foresight.recommend(request)
    recommendation = replace(recommendation, notes=(*notes, *recommendation.notes))
    document = {"path": str(recommendation.path), **recommendation.to_document()}
    return Answer(document=document, show=partial(_show, recommendation))


def _one_number(text: str) -> int:
    if "," in text:
        raise UsageError(
            f"must be one number for a recommendation, got {text[:40]!r}; recommend for each number",
            field="workers",
        )
    return n_workers(text)


def _source_folder(source: str) -> tuple[Path | None, list[str]]:
    """The run folder that an argument names, None for a workload or an experiment; and notes on its meaning.

    Raises:
        StoreError: it is a folder without a run, and no experiment or workload.
    """
    from workloads.table import WORKLOADS

    try:
        return run_folder(source)
    except StoreError:
        if kebab(source) not in WORKLOADS:
            raise
        return None, [f"{source} is the workload; the folder of this name has no run"]


def _predictable(spec: Experiment) -> Experiment:
    """The experiment, if its steps can be predicted and are computed in one way.

    Raises:
        UsageError: they cannot, or in several.
    """
    from harness.prediction.conditions import conditions

    conditions(spec.to_document(), overrides={"matrix": {}, "compare.baseline": None}, of_run=False)
    for key in ("precision", "xla", "tf32"):
        values = [scalar_text(value) for value in getattr(spec.measure, key)]
        if len(values) > 1:
            raise UsageError(
                f"must be one for a recommendation, got {', '.join(values)}; choose it with --set "
                f"measure.{key}={values[0]}",
                field=f"measure.{key}",
            )
    return spec


def _refuse_for_runs(*, settings: Sequence[str] | None, measure: bool | None) -> None:
    field = "set" if settings else "measure" if measure else None
    if field is not None:
        raise UsageError("is for a workload or an experiment, got a run folder; name one", field=field)


def _strategies(text: str | None) -> tuple[StrategyRef, ...]:
    from harness.experiment.chosen_strategy import choose
    from harness.experiment.references import parse_strategy, split_list

    names = () if text is None else split_list(text, field="strategies")
    chosen = tuple(parse_strategy(name, field="strategies") for name in names)
    for strategy in chosen:
        choose(strategy, field="strategies")
    return chosen


def _is_workload(source: str) -> bool:
    """True unless the source is an experiment file or the name of a shipped experiment."""
    from harness.experiment.load import shipped

    is_file = Path(source).suffix in (".yaml", ".yml")
    return not (is_file or kebab(source) in {path.stem for path in shipped()})


def _document(source: str, workload: str | None, settings: Sequence[str]) -> Mapping[str, object]:
    """Experiment document with one workload.

    Raises:
        UsageError: the experiment cannot be used, or has several workloads and none is named.
    """
    from harness.experiment.load import find, laid_over, read

    if _is_workload(source):
        if workload is not None:
            raise UsageError("is for an experiment or a run, got a workload; drop it", field="workload")
        return {"name": f"recommend-{slug(source)}", "workloads": [source], "strategies": ["none"]}
    document = read(find(source))
    overrides = {} if workload is None else {"workloads": [workload]}
    refs = laid_over(document, settings=settings, overrides=overrides, surroundings=os.environ).workloads
    if len(refs) > 1:
        raise UsageError(f"must be one of {', '.join(map(str, refs))}, got none; name it", field="workload")
    return {**document, "workloads": [{"name": refs[0].reference, **refs[0].params}]}


def _measuring(
    document: Mapping[str, object],
    spec: Experiment,
    settings: Sequence[str],
    n: int,
    rate: float | None,
    *,
    measure: bool | None,
) -> Experiment | None:
    """Experiment that measures plans on these workers and links; None if it cannot or is not to.

    Raises:
        UsageError: it is to measure, but has other workers or links, or computes in several ways.
    """
    from harness.experiment.cases import expand
    from harness.experiment.load import laid_over

    own_rates, own_workers = spec.cluster.link.rate_mbit, spec.cluster.workers
    if measure is False or (measure is None and (n not in own_workers or rate not in own_rates)):
        return None
    for field, wanted, own in (("workers", n, own_workers), ("link.rate_mbit", rate, own_rates)):
        if wanted not in own:
            raise UsageError(
                f"needs the workers and links of the experiment, got cluster.{field} {own[0]} instead of "
                f"{wanted}; set cluster.{field}, or drop --measure",
                field="measure",
            )
    until = {} if spec.measure.until is not None else {"measure.until": _UNTIL}
    overrides = {
        **_MEASURING,
        **until,
        "name": f"recommend-{slug(str(spec.workloads[0]))}",
        "cluster.workers": n,
        "cluster.link.rate_mbit": rate,
    }
    measuring = laid_over(document, settings=settings, overrides=overrides, surroundings=os.environ)
    n_cases = len(expand(measuring))
    if n_cases > 1:
        raise UsageError(f"must leave one way to compute, got {n_cases}; give no lists", field="set")
    return measuring


def _short(title: str) -> str:
    """Title of a plan that leaves room for figures; its file has all of it."""
    return title if len(title) <= _MOST_TITLE else f"{title[: _MOST_TITLE - 1]}…"


def _show(recommendation: Recommendation) -> None:
    from reports.quantities import byte_count, digits, seconds

    question = recommendation.question
    rate = question.link_mbit
    link = "links without a limit" if rate is None else f"links of {rate:,.10g} Mbit/s"
    output.print_line(
        f"{recommendation.workload} · {question.workers} workers · batch {question.batch_size} · {link}"
    )
    output.table(
        [
            "",
            "plan",
            "workers",
            "predicted step",
            "95 % interval",
            "measured",
            "busiest link",
            "worker-h/million",
        ],
        [
            [
                str(number),
                _short(plan.title),
                str(plan.predicted.n_workers),
                seconds(prediction.step_s),
                f"{seconds(prediction.low_s)}–{seconds(prediction.high_s)}",
                _measured(plan),
                byte_count(prediction.busiest_bytes),
                digits(prediction.worker_hours_per_million_examples),
            ]
            for number, plan in enumerate(recommendation.plans, start=1)
            for prediction in (plan.predicted.prediction,)
        ],
    )
    output.print_line()
    for number, plan in enumerate(recommendation.plans, start=1):
        output.print_line(f"{number}: {plan.why}")
    output.print_line(recommendation.verdict)
    if not recommendation.is_complete:
        output.print_line(
            "note: the search ended at its limit of plans or --seconds, after "
            f"{recommendation.n_predictions} plans; there may be a better one"
        )
    for note in recommendation.notes:
        output.print_line(f"note: {note}")
    if recommendation.measured_in is not None:
        output.print_line(f"measured in: {recommendation.measured_in}")
    output.print_line(f"plan: {recommendation.path}")
    if recommendation.later is not None:
        output.print_line(f"measure it there: {recommendation.later}")


def _measured(plan: RankedPlan) -> str:
    from reports.quantities import MISSING, seconds, times

    if plan.problem is not None:
        return f"failed: {plan.problem}"
    if plan.measured is None:
        return "–"
    ratio = plan.measured.ratio
    return f"{seconds(plan.measured.step_s)} ({MISSING if ratio is None else times(ratio)})"
