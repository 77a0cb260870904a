"""`stratbench predict`: steps of all strategies at other numbers of workers and other links."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import options, output
from harness.cli.output import Answer
from harness.cli.process import WorkerOptions, isolate, run_options
from harness.errors import UsageError
from harness.requests import PredictRequest
from harness.written_values import parse_rate_mbit

if TYPE_CHECKING:
    from harness.experiment.model import Experiment
    from harness.prediction.predictions import Predicted, Prediction

EXAMPLE = "stratbench predict quickstart --workers 8,64,512 --link 1gbit,25gbit"
_UNLIMITED = "none"
_PROFILING: Mapping[str, object] = {
    "name": "profile",
    "strategies": ["none"],
    "cluster.workers": [1, 2],
    "compare.baseline": None,
    "measure.repeats": 1,
    "measure.until": None,
    "measure.trace": True,
    "measure.aa": False,
    "measure.observer": False,
    "cluster.link": {"rate_mbit": None},
    "faults": [],
    "matrix": {"include": [], "exclude": []},
}
"""Values of the experiment that profiles a workload: two numbers of examples per worker."""
_MOST_WORKERS = 1_000_000
_LEAST_MBIT, _MOST_MBIT = 1.0, 1e9


def predict(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            metavar="EXPERIMENT|RUN",
            help="An experiment, whose workloads are profiled first, or the folder of a run that has `none`.",
            show_default=False,
        ),
    ],
    *,
    workers: Annotated[
        str, typer.Option("--workers", "-w", metavar="N,N…", help="Numbers of workers, such as 8,64,512.")
    ] = "8,64",
    link: Annotated[
        str,
        typer.Option(
            "--link", metavar="RATE,…", help="Rates of each worker's link, such as 1gbit; none: no limit."
        ),
    ] = _UNLIMITED,
    strategies: Annotated[
        str | None,
        typer.Option("--strategies", "-s", metavar="S,S…", help="Strategies [default: the experiment's]."),
    ] = None,
    probe: Annotated[
        Path | None,
        typer.Option(
            "--probe",
            metavar="FILE",
            help="Costs of exchanges [default: this machine's, measured if missing].",
        ),
    ] = None,
    settings: options.Settings = None,
    out: options.OutFolder = None,
    worker_options: WorkerOptions,
) -> Answer:
    """Predict steps of strategies on workers that you do not have.

    The computation of a step is profiled on two workers, the exchanges of each plan are simulated.
    """
    from harness.experiment.chosen_strategy import choose
    from harness.experiment.load import load_experiment
    from harness.experiment.references import parse_strategy, split_list
    from harness.preflight import check_experiment

    names = () if strategies is None else split_list(strategies, field="strategies")
    chosen = tuple(parse_strategy(text, field="strategies") for text in names)
    for strategy in chosen:
        choose(strategy, field="strategies")
    counts = tuple(dict.fromkeys(_count(text) for text in workers.split(",")))
    rates = tuple(dict.fromkeys(_rate_mbit(text) for text in link.split(",")))
    run_dir = Path(source) if Path(source).is_dir() else None
    profiling = probing = None
    exposure = None
    if run_dir is None:
        spec = load_experiment(source, settings=settings or (), surroundings=os.environ)
        chosen = chosen or spec.strategies
        overrides = {**_PROFILING, "workloads": [str(workload) for workload in spec.workloads]}
        profiling = load_experiment(
            source, settings=settings or (), overrides=overrides, surroundings=os.environ
        )
        provider = spec.cluster.provider[0]
        probing = load_experiment("probe", overrides={"cluster.provider": provider}, surroundings=os.environ)
        exposure = isolate(context, worker_options, providers=profiling.cluster.provider)
        check_experiment(profiling)
    elif settings or out is not None:
        field = "set" if settings else "out"
        raise UsageError("is for an experiment, got a run folder; name the experiment", field=field)
    request = PredictRequest(
        source=run_dir or _present(profiling),
        workers=counts,
        links_mbit=rates,
        strategies=chosen,
        probe=probe,
        probing=probing,
        options=run_options(context, worker_options, exposure=exposure, out=out),
    )
    from harness import pipeline

    predicted = pipeline.predict(request)
    return Answer(document=predicted.to_document(), show=partial(_show, predicted))


def _present(spec: Experiment | None) -> Experiment:
    assert spec is not None
    return spec


def _count(text: str) -> int:
    if not text.strip().isdecimal() or not text.isascii() or not 1 <= int(text) <= _MOST_WORKERS:
        raise UsageError(
            f"needs numbers from 1 to {_MOST_WORKERS:,} with commas, such as 8,64, got {text[:40]!r}",
            field="workers",
        )
    return int(text)


def _rate_mbit(text: str) -> float | None:
    if text.strip().lower() == _UNLIMITED:
        return None
    rate = parse_rate_mbit(text)
    if rate is None or not _LEAST_MBIT <= rate <= _MOST_MBIT:
        raise UsageError(
            f"needs rates with a unit from 1mbit to 1000000gbit, or {_UNLIMITED}, got {text[:40]!r}",
            field="link",
        )
    return rate


def _show(predicted: Predicted) -> None:
    from reports.quantities import byte_count, seconds

    def group(p: Prediction) -> tuple[str, int, float | None]:
        return p.workload, p.question.workers, p.question.link_mbit or float("inf")

    ordered = sorted(predicted.predictions, key=lambda p: (*group(p), p.step_s))
    for (workload, n_workers, rate), own in itertools.groupby(ordered, key=group):
        cases = list(own)
        link = "links without a limit" if rate == float("inf") else f"links of {rate:,.10g} Mbit/s"
        output.print_line(f"{workload} · {n_workers} workers · batch {cases[0].question.batch_size} · {link}")
        output.table(
            ["strategy", "ex/s", "efficiency", "step", "95 % interval", "sent/step", "memory", "limited by"],
            [
                [
                    str(p.strategy),
                    f"{p.examples_per_s:,.0f}",
                    _percent(predicted.efficiency(p)),
                    seconds(p.step_s),
                    f"{seconds(p.low_s)}–{seconds(p.high_s)}",
                    byte_count(p.payload_bytes),
                    byte_count(p.memory_bytes),
                    p.limited_by + (" *" if p.extrapolated else ""),
                ]
                for p in cases
            ],
        )
        output.print_line()
    if any(p.extrapolated for p in ordered):
        beyond = sorted({name for p in ordered for name in p.extrapolated})
        output.print_line(f"* beyond what was measured: {', '.join(beyond)}")
    for line in predicted.crossings():
        output.print_line(line)
    for note in predicted.notes:
        output.print_line(f"note: {note}")
    output.print_line(
        f"probe: {predicted.probe_path}, fitted to {predicted.probe.n_steps} steps of two workers"
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"
