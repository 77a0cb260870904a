"""`stratbench plan`: placement of variables by a strategy, and its predicted traffic."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import options, output
from harness.cli.documents import plan_document
from harness.cli.output import Answer
from harness.cli.process import is_watched
from harness.errors import UsageError
from harness.measure.timeouts import timeouts
from harness.requests import PlanRequest

if TYPE_CHECKING:
    from harness.planned_target import Planned
    from harness.prediction.slices import SliceCost
    from strategies.plan.exchanges.flow import Op
    from strategies.plan.schema import Partition, PlanNode
    from strategies.plan.traffic import PayloadMatrix
    from strategies.tpu_slices import Torus, TpuSlice

SliceOption = Annotated[
    str | None,
    typer.Option(
        "--slice",
        metavar="ACCELERATOR:TOPOLOGY",
        help="Estimate the collectives on a TPU slice, such as v4:2x2x2.",
        show_default=False,
    ),
]

MatrixOption = Annotated[
    bool,
    typer.Option("--matrix", help="Also show the bytes from each worker to each other one."),
]
MOST_WORKERS_IN_MATRIX = 1_000

EXAMPLE = "stratbench plan wide-mlp --strategy ps-load-balancing --workers 3"


def plan(
    context: typer.Context,
    target_options: options.TargetOptions,
    *,
    device: options.Device = options.Hardware.CPU,
    share_gpus: options.ShareGpus = False,
    on_slice: SliceOption = None,
    matrix: MatrixOption = False,
    timeout_factor: options.TimeoutFactor = 1.0,
) -> Answer:
    """Show where variables are placed and the predicted bytes per step."""
    target = target_options.target(device, share_gpus=share_gpus)
    if matrix and target.workers > MOST_WORKERS_IN_MATRIX:
        raise UsageError(
            f"is for at most {MOST_WORKERS_IN_MATRIX} workers, got {target.workers}; leave it out, `traffic` "
            "has the bytes of each worker",
            field="matrix",
        )
    request = PlanRequest(
        target=target,
        slice=None if on_slice is None else _slice(on_slice, n_replicas=target.workers * target.replicas),
        matrix=matrix,
        live=is_watched(context),
        timeouts=timeouts(timeout_factor),
    )
    from harness import pipeline

    planned = pipeline.plan(request)
    return Answer(document=plan_document(planned), show=partial(_show, planned))


def _slice(name: str, *, n_replicas: int) -> TpuSlice:
    # Not needed for --help.
    from strategies.errors import StrategyError
    from strategies.tpu_slices import parse_slice

    try:
        tpu_slice = parse_slice(name)
        tpu_slice.require_replicas(n_replicas)
    except StrategyError as error:
        raise UsageError(str(error), field="slice") from None
    return tpu_slice


def _parts(node: PlanNode) -> str:
    if node.in_parts:
        return "within loops"
    return "-" if node.partition is None else _partition(node.partition)


_PLACES = ("partition", "synchronizer", "destination", "group", "owner")


def _show(answer: Planned) -> None:
    from harness.run.plausibility import payload_is_bound
    from reports.quantities import byte_count
    from strategies.plan.number_lists import in_words

    planned = answer.plan
    for warning in planned.warnings:
        output.print_line(f"warning: {warning}")
    output.table(
        ["variable", "shape", "bytes", *_PLACES],
        [
            [
                node.variable,
                "x".join(map(str, node.shape)) or "scalar",
                byte_count(node.bytes),
                _parts(node),
                *(_text(place) for place in (node.synchronizer, node.destination, node.group, node.owner)),
            ]
            for node in planned.nodes
        ],
    )
    output.print_line()
    at_most = "at most " if payload_is_bound(planned) else ""
    payload = byte_count(planned.payload_bytes_per_step)
    output.print_line(f"predicted bytes sent by all workers: {at_most}{payload} per step")
    if planned.statistics:
        n_bytes = sum(layer.bytes for layer in planned.statistics)
        output.print_line(
            f"included: batch statistics of {len(planned.statistics)} layers, "
            f"{byte_count(n_bytes)} per replica"
        )
    busiest = planned.busiest
    if busiest is not None and busiest.busiest_bytes:
        output.print_line(
            f"busiest link: {byte_count(busiest.sent_bytes)} sent and {byte_count(busiest.received_bytes)} "
            f"received per step by task {in_words(busiest.tasks)}"
        )
    output.print_line(f"memory of servers, by task: {_by_task(planned.server_bytes)}")
    output.print_line(f"memory of the largest replica: {byte_count(planned.worker_bytes)}")
    if planned.shares_devices:
        output.print_line("replicas share GPUs: times and bytes differ from those on separate GPUs")
    if answer.slice_cost is not None:
        _show_slice(answer.slice_cost)
    if answer.matrix is not None:
        _show_matrix(answer.matrix)
    for note in planned.notes:
        output.print_line(f"note: {note}")


def _by_task(n_bytes: tuple[int, ...]) -> str:
    from reports.quantities import byte_count
    from strategies.plan.number_lists import Repeated, repetitions_of

    texts, first = [], 0
    for repeated in repetitions_of(n_bytes):
        tasks = Repeated((first,), repeated.length, 1)
        least, most = min(repeated.numbers()), max(repeated.numbers())
        texts.append(f"{tasks}: {byte_count(least)}" + (f" to {byte_count(most)}" if least < most else ""))
        first += repeated.length
    return ", ".join(texts)


def _show_matrix(matrix: PayloadMatrix) -> None:
    from reports.quantities import byte_count

    output.print_line()
    n_tasks = len(matrix.sent)
    output.table(
        ["bytes per step from", *(f"to {task}" for task in range(n_tasks))],
        [[str(task), *map(byte_count, row)] for task, row in enumerate(matrix.sent)],
    )
    output.print_line()


def _show_slice(cost: SliceCost) -> None:
    from reports.quantities import byte_count, seconds

    generation, torus, collectives = cost.slice.generation, cost.slice.torus, cost.collectives
    output.print_line(
        f"on {cost.slice.accelerator}:{cost.slice.topology}: {torus.n_chips} chips as {_wrapping(torus)}, "
        f"with {torus.links_in_use} of {generation.links_per_chip} links in use, each of "
        f"{byte_count(torus.link_bytes_per_s)}/s one way"
    )
    kinds: Mapping[Op, tuple[str, float]] = {
        "sum": ("all-reduce", collectives.all_reduce_bytes),
        "scatter": ("reduce-scatter", collectives.reduce_scatter_bytes),
        "gather": ("all-gather", collectives.all_gather_bytes),
    }
    costs = [
        f"{kind} {seconds(cost.seconds[op])} ({byte_count(n_bytes)})"
        for op, (kind, n_bytes) in kinds.items()
        if op in cost.seconds
    ]
    sentence = (
        f"lower limit per step, without latency: {seconds(cost.total_s)}: {', '.join(costs)}"
        if costs
        else "the plan has no collectives"
    )
    left_out = collectives.left_out
    beside = (
        f"; variables on servers or with sparse gradients not included: {len(left_out)}" if left_out else ""
    )
    output.print_line(sentence + beside)


def _wrapping(torus: Torus) -> str:
    lengths = [str(length) for length, wraps in zip(torus.dims, torus.wrapped, strict=True) if wraps]
    if not lengths:
        return "a mesh"
    return "a torus" if len(lengths) == len(torus.dims) else f"a torus along its axis of {lengths[0]}"


def _text(value: object) -> str:
    return "-" if value is None else str(value)


def _partition(partition: Partition) -> str:
    from strategies.plan.number_lists import in_words

    places = {
        "destinations": partition.destinations,
        "groups": partition.groups,
        "owners": partition.owners,
    }
    parts = [f"axis {partition.axis}: {in_words(partition.sizes)}"]
    parts += [f"{name} {in_words(values)}" for name, values in places.items() if values]
    return "; ".join(parts)
