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
from harness.cli.output_files import naming, output_file
from harness.cli.prediction_options import (
    UNLIMITED,
    ProbeFile,
    experiment_of,
    n_workers,
    rate_mbit,
    run_folder,
)
from harness.cli.process import WorkerOptions, isolate, run_options
from harness.errors import UsageError
from harness.requests import PredictRequest
from harness.written_values import n_of_workers

if TYPE_CHECKING:
    from harness.experiment.model import Experiment
    from harness.prediction.predictions import Predicted, Prediction
    from strategies.plan.faults import Fault

EXAMPLE = "stratbench predict quickstart --workers 8,64,512 --link 1gbit,25gbit"
_USUAL_WORKERS = "8,64"


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
        str | None,
        typer.Option(
            "--workers", "-w", metavar="N,N…", help=f"Numbers of workers [default: {_USUAL_WORKERS}]."
        ),
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(
            "--link",
            metavar="RATE,…",
            help=f"Rates of each worker's link, such as 1gbit or {UNLIMITED} [default: the experiment's].",
        ),
    ] = None,
    strategies: Annotated[
        str | None,
        typer.Option("--strategies", "-s", metavar="S,S…", help="Strategies [default: the experiment's]."),
    ] = None,
    price: Annotated[
        float | None,
        typer.Option("--price", metavar="P", help="Price of a worker's hour, to show costs of examples."),
    ] = None,
    probe: ProbeFile = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PATH=VALUE",
            help="Change a value of the experiment, also of a run's; may be repeated.",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write a page with scaling curves and simulated steps."),
    ] = None,
    out: options.OutFolder = None,
    worker_options: WorkerOptions,
) -> Answer:
    """Predict steps of strategies on workers that you do not have.

    The computation of a step is profiled on two workers, the exchanges of each plan are simulated.
    """
    from harness.experiment.chosen_strategy import choose
    from harness.experiment.load import find, laid_over, parse_settings, read
    from harness.prediction.conditions import conditions, probing, profiling
    from harness.preflight import check_experiment

    changes = settings or []
    overrides = _overrides(workers, link, strategies, price, parse_settings(changes))
    run_dir, notes = run_folder(source)
    document = experiment_of(run_dir) if run_dir else read(find(source))
    spec = conditions(document, settings=changes, overrides=overrides, of_run=run_dir is not None)
    for index, strategy in enumerate(spec.strategies):
        choose(strategy, field=f"strategies[{index}]" if strategies is None else "strategies")
    page = None if html is None else output_file(html, field="html")
    exposure = None
    if run_dir is not None:
        if out is not None:
            raise UsageError("is for an experiment, got a run folder; name the experiment", field="out")
        measured: Experiment | Path = run_dir
        cluster = laid_over(document, runs=False).cluster
    else:
        measured = profiling(document, settings=changes, surroundings=os.environ)
        cluster = measured.cluster
        exposure = isolate(context, worker_options, providers=cluster.provider)
        check_experiment(measured)
    probe_spec = probing(cluster, os.environ)
    if run_dir is None and probe is None:
        check_experiment(probe_spec)
    request = PredictRequest(
        source=measured,
        spec=spec,
        changes=changes if price is None else [*changes, f"cluster.price_per_hour={price:g}"],
        probe=probe,
        probing=probe_spec,
        options=run_options(context, worker_options, exposure=exposure, out=out),
        notes=notes,
        with_timelines=page is not None,
    )
    from harness import foresight

    predicted = foresight.predict(request)
    document = {**predicted.to_document(), "page": None if page is None else str(page)}
    if page is not None:
        _write_page(predicted, page)
    return Answer(document=document, show=partial(_show, predicted, page))


def _write_page(predicted: Predicted, path: Path) -> None:
    import reports
    from harness.atomic_files import write_output
    from harness.records.predictions import stored_predictions

    html = reports.prediction_page(
        stored_predictions(predicted.cases()),
        run_dir=predicted.run_dir,
        timelines=predicted.timelines,
        texts=(*_changes(predicted), *predicted.fastest(), *predicted.notes),
    )
    with naming(path, field="html"):
        write_output(path, html.encode("utf-8", errors="replace"))


def _overrides(
    workers: str | None,
    link: str | None,
    strategies: str | None,
    price: float | None,
    settings: Mapping[str, object],
) -> Mapping[str, object]:
    """Dotted path → value of the options that name conditions.

    Args:
        settings: values of `--set`, which replace the usual numbers of workers.
    """
    from harness.experiment.references import split_list
    from harness.prediction.conditions import is_set

    values: dict[str, object] = {"matrix": {}, "compare.baseline": None}
    if workers is not None or not is_set("cluster.workers", settings):
        counts = map(n_workers, (_USUAL_WORKERS if workers is None else workers).split(","))
        values["cluster.workers"] = list(dict.fromkeys(counts))
    if link is not None:
        values["cluster.link.rate_mbit"] = list(dict.fromkeys(map(rate_mbit, link.split(","))))
    if strategies is not None:
        values["strategies"] = list(split_list(strategies, field="strategies"))
    if price is not None:
        values["cluster.price_per_hour"] = price
    return values


def _changes(predicted: Predicted) -> list[str]:
    return [f"changed: {', '.join(predicted.changes)}"] if predicted.changes else []


def _show(predicted: Predicted, page: Path | None) -> None:
    from harness.prediction.predictions import surroundings_text

    def group(p: Prediction) -> tuple[str, int, int, float, tuple[Fault, ...]]:
        question = p.question
        rate = float("inf") if question.link_mbit is None else question.link_mbit
        return p.workload, question.batch_size, question.workers, rate, question.faults

    def order(p: Prediction) -> tuple[object, ...]:
        *others, faults = group(p)
        return (*others, str(faults), p.step_s)

    ordered = sorted(predicted.predictions, key=order)
    for line in _changes(predicted):
        output.print_line(line)
    for (workload, batch, n, _, faults), rows in itertools.groupby(ordered, key=group):
        cases = list(rows)
        question = cases[0].question
        workers = n_of_workers(n)
        surroundings = surroundings_text(question.link_mbit, faults)
        output.print_line(f"{workload} · {workers} · batch {batch} · links {surroundings}")
        _show_cases(cases)
        output.print_line()
    if any(p.extrapolated for p in ordered):
        beyond = sorted({name for p in ordered for name in p.extrapolated})
        output.print_line(f"* beyond what was measured: {', '.join(beyond)}")
    for line in predicted.fastest():
        output.print_line(line)
    for note in predicted.notes:
        output.print_line(f"note: {note}")
    costs = predicted.probe
    output.print_line(
        f"probe: {predicted.probe_path}, fitted to {costs.n_steps} steps of {costs.most_workers} workers"
    )
    if page is not None:
        output.print_line(f"page: {page}")


def _show_cases(cases: list[Prediction]) -> None:
    from reports.quantities import byte_count, digits, seconds

    has_price = any(p.cost_per_million_examples is not None for p in cases)
    output.table(
        [
            *("strategy", "ex/s", "eff.", "step, 95 %", "sent", "memory", "limited by"),
            *["cost/M"] * has_price,
        ],
        [
            [
                str(p.strategy),
                f"{p.examples_per_s:,.0f}",
                f"{100 * p.efficiency:.0f} %",
                f"{seconds(p.step_s)} ±{100 * (p.high_s / p.step_s - 1):.0f} %",
                byte_count(p.payload_bytes),
                byte_count(p.memory_bytes),
                p.limited_by + (" *" if p.extrapolated else ""),
                *([digits(p.cost_per_million_examples or 0.0)] if has_price else []),
            ]
            for p in cases
        ],
    )
