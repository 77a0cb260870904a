"""`stratbench transform`: a strategy's passes applied for one worker."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import options, output
from harness.cli.documents import transform_document
from harness.cli.output import Answer
from harness.cli.output_files import output_file, require_no_records
from harness.cli.process import is_watched
from harness.errors import UsageError
from harness.measure.timeouts import timeouts
from harness.requests import TransformRequest

if TYPE_CHECKING:
    from harness.worker.jobs.transform import Transformation

EXAMPLE = "stratbench transform digits-cnn --strategy ps --rank 1 --graphdef worker1.pb"


def transform(
    context: typer.Context,
    target_options: options.TargetOptions,
    *,
    device: options.Device = options.Hardware.CPU,
    rank: Annotated[
        int, typer.Option("--rank", metavar="K", min=0, help="Number of the worker, from 0.")
    ] = 0,
    graphdef: Annotated[
        Path | None,
        typer.Option("--graphdef", metavar="FILE", help="Write the worker's GraphDef to this file."),
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="Print the worker's graph as text.")] = False,
    stages: Annotated[
        Path | None,
        typer.Option(
            "--stages",
            metavar="DIR",
            help="Write the graph after each pass here, as text and TensorBoard files.",
        ),
    ] = None,
    timeout_factor: options.TimeoutFactor = 1.0,
) -> Answer:
    """Apply a strategy's graph passes for one worker.

    Shows nodes and seconds of each pass, and prints or saves the graph.
    """
    if rank >= target_options.workers:
        raise UsageError(
            f"must be below the number of workers, {target_options.workers}, got {rank}; raise --workers",
            field="rank",
        )
    _require_outputs(graphdef, stages, text=text)
    request = TransformRequest(
        target=target_options.target(device),
        rank=rank,
        graphdef=None if graphdef is None else output_file(graphdef, field="graphdef"),
        text=text,
        stages=stages,
        live=is_watched(context),
        timeouts=timeouts(timeout_factor),
    )
    from harness import pipeline

    transformation = pipeline.transform(request)
    return Answer(
        document=transform_document(transformation), show=partial(_show, transformation, graphdef, stages)
    )


def _require_outputs(graphdef: Path | None, stages: Path | None, *, text: bool) -> None:
    """Require that the outputs do not exclude each other, and that stages overwrite nothing."""
    for field, path in (("graphdef", graphdef), ("stages", stages)):
        if path is not None and text:
            raise UsageError("must not be given with --text; drop one of them", field=field)
    if stages is None:
        return
    if not _is_free(stages):
        raise UsageError(
            f"must be a new or an empty folder, got {str(stages)!r}; name another", field="stages"
        )
    require_no_records(stages, field="stages")


def _is_free(folder: Path) -> bool:
    try:
        return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    except OSError:
        return False


def _show(transformation: Transformation, graphdef: Path | None, stages: Path | None) -> None:
    if transformation.text is not None:
        output.print_text(transformation.text)
        return
    output.table(
        ["pass", "seconds", "nodes after"],
        [[item.name, output.number(item.seconds), str(item.nodes)] for item in transformation.passes],
    )
    output.print_line()
    output.print_line(
        f"nodes: {transformation.nodes_before} before, {transformation.nodes_after} after "
        f"({output.number(transformation.seconds)} s)"
    )
    if graphdef is not None:
        output.print_line(f"GraphDef: {graphdef}")
    if stages is not None:
        output.print_line(
            f"stages: {stages}; view them with `tensorboard --logdir {shlex.quote(str(stages))}`"
        )
