"""`stratbench probe`: costs of exchanges between workers of this kind of machine."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import options, output
from harness.cli.output import Answer
from harness.cli.output_files import output_file
from harness.cli.process import WorkerOptions, isolate, run_options
from harness.requests import ProbeRequest

if TYPE_CHECKING:
    from harness.prediction.probe import Probe

EXAMPLE = "stratbench probe --out probe.json"


def probe(
    context: typer.Context,
    *,
    settings: options.Settings = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write the costs here [default: runs/probes/…]."),
    ] = None,
    worker_options: WorkerOptions,
) -> Answer:
    """Measure what exchanges cost on these machines, for predictions.

    Short steps run on two and on four workers, in ten minutes. `stratbench predict` uses the result until the
    machine changes.
    """
    from harness.prediction.conditions import probe_experiment
    from harness.preflight import check_experiment

    spec = probe_experiment(os.environ, settings=settings or ())
    exposure = isolate(context, worker_options, providers=spec.cluster.provider)
    check_experiment(spec)
    request = ProbeRequest(
        spec=spec,
        out=None if out is None else output_file(out, field="out"),
        options=run_options(context, worker_options, exposure=exposure),
    )
    from harness import foresight

    path, costs = foresight.probe(request)
    document = {"path": str(path), **costs.to_document()}
    return Answer(document=document, show=partial(_show, path, costs))


def _show(path: Path, costs: Probe) -> None:
    from reports.quantities import seconds

    output.table(
        ["exchanges", "per step", "per message", "per hop", "per variable", "per MB", "latency"],
        [
            [
                name,
                seconds(cost.step_s),
                seconds(cost.message_s),
                seconds(cost.hop_s),
                seconds(cost.variable_s),
                seconds(cost.sum_s * 1e6),
                seconds(cost.round_s),
            ]
            for name, cost in costs.costs.collectives.items()
        ],
    )
    output.print_line()
    output.print_line("processor time of each worker; latency from one worker to the next")
    errors = ", ".join(f"{name} ±{100 * spread:.0f} %" for name, spread in costs.spreads.items())
    output.print_line(f"fitted to {costs.n_steps} measured steps; errors of their predictions: {errors}")
    output.print_line(f"probe: {path}")
