"""`stratbench tune`: a strategy's fastest parameters for a workload and its links."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.canonical import slug
from harness.cli import options, output
from harness.cli.output import Answer
from harness.cli.output_files import output_file
from harness.cli.process import WorkerOptions, isolate, run_options
from harness.errors import UsageError
from harness.requests import TuneRequest
from harness.written_values import parse_rate_mbit

if TYPE_CHECKING:
    from harness.experiment.model import Experiment
    from harness.tuning import Tuned

EXAMPLE = "stratbench tune wide-mlp --strategy all-reduce --seconds 180 --out tuned.plan.json"

# Candidates are many and repeats are short: processes differ more than windows of one process.
_MEASURE = {"repeats": 1, "rounds": 5, "steps": 25, "trace": False}


@dataclass(frozen=True, kw_only=True, slots=True)
class TuneOptions:
    """Options of `tune`, without the strategy and the plan's file."""

    provider: Annotated[
        str, typer.Option("--provider", metavar="P", help="Place of the workers: local, docker or cluster.")
    ] = "local"
    workers: options.Workers = 2
    replicas: options.Replicas = 1
    link: Annotated[
        str | None,
        typer.Option(
            "--link", metavar="100mbit", help="Limit each worker's network link; needs --provider docker."
        ),
    ] = None
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds", metavar="S", min=1, max=10**6, help="Time limit of the whole search, in seconds."
        ),
    ] = 180
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Random seed.")] = 0
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Set a value of the experiment; may be repeated."),
    ] = None


def tune(
    context: typer.Context,
    workload: options.WorkloadArgument,
    *,
    strategy: Annotated[
        str,
        typer.Option(
            "--strategy",
            "-s",
            metavar="S",
            help="A strategy, as NAME:key=value; parameters with a value stay fixed.",
            show_default=False,
        ),
    ],
    chosen: TuneOptions,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="Write the fastest plan here [default: in the run folder]."
        ),
    ] = None,
    worker_options: WorkerOptions,
) -> Answer:
    """Find a strategy's fastest parameters for a workload.

    The plan with these parameters is written to a file.
    """
    target = options.TargetOptions(
        workload=workload, strategy=strategy, workers=chosen.workers, replicas=chosen.replicas
    ).parsed()
    if out is not None:
        options.plan_reference(str(out), field="out")
    from harness.preflight import check_experiment, check_target

    spec = _experiment(context, workload, strategy, chosen)
    exposure = isolate(context, worker_options, providers=spec.cluster.provider)
    check_target(target)
    check_experiment(spec)
    request = TuneRequest(
        spec=spec,
        seconds=chosen.seconds,
        out=None if out is None else output_file(out, field="out"),
        options=run_options(context, worker_options, exposure=exposure),
    )
    from harness import pipeline

    tuned = pipeline.tune(request)
    document = {"plan": str(tuned.path), **tuned.to_document()}
    return Answer(document=document, show=partial(_show, tuned))


def _experiment(context: typer.Context, workload: str, strategy: str, chosen: TuneOptions) -> Experiment:
    """Experiment with one case: settings replace the command's own values, and options replace settings."""
    from harness.experiment.load import laid_over

    provider, workers, replicas, seed = chosen.provider, chosen.workers, chosen.replicas, chosen.seed
    own: dict[str, tuple[str, object]] = {
        "provider": ("cluster.provider", provider),
        "workers": ("cluster.workers", workers),
        "replicas": ("cluster.replicas_per_worker", replicas),
        "seed": ("measure.seed", seed),
    }
    return laid_over(
        {
            "name": f"tune-{slug(workload)}",
            "cluster": {"provider": provider, "workers": workers, "replicas_per_worker": replicas},
            "measure": {**_MEASURE, "seed": seed},
        },
        settings=chosen.settings or (),
        overrides={
            "workloads": [workload],
            "strategies": [strategy],
            **({} if chosen.link is None else {"cluster.link.rate_mbit": _rate_mbit(chosen.link)}),
            **{path: value for name, (path, value) in own.items() if options.is_given(context, name)},
        },
        surroundings=os.environ,
    )


def _rate_mbit(text: str) -> float:
    rate = parse_rate_mbit(text)
    if rate is None:
        raise UsageError(
            f"needs a rate with a unit, such as 100mbit or 1gbit, got {text[:80]!r}", field="link"
        )
    return rate


def _show(tuned: Tuned) -> None:
    from harness.tuning import figures

    output.table(
        ["candidate", "examples/s ÷ default", "outcome"],
        [
            [
                str(candidate.strategy),
                figures(candidate),
                candidate.outcome if candidate.why is None else f"{candidate.outcome}: {candidate.why}",
            ]
            for candidate in tuned.tried
        ],
    )
    output.print_line()
    output.print_line(tuned.verdict)
    output.print_line(f"run folder: {tuned.run_dir}")
    output.print_line(f"plan: {tuned.path}")
