"""`stratbench plan`: where a strategy puts each variable, and what it will send."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from harness.cli import options, output
from harness.cli.answer import Answer
from harness.cli.documents import plan_document
from harness.measure.timeouts import timeouts
from harness.requests import PlanRequest

if TYPE_CHECKING:
    from strategies.plan.schema import Partition, Plan

EXAMPLE = "stratbench plan wide-mlp --strategy ps-load-balancing --workers 3"


def plan(
    workload: options.WorkloadArgument,
    *,
    strategy: options.StrategyOption = None,
    edited: options.PlanOption = None,
    workers: options.Workers = 2,
    replicas: options.Replicas = 1,
    timeout_factor: options.TimeoutFactor = 1.0,
    json: options.Json = False,
    debug: options.Debug = False,  # noqa: ARG001 - read by main
) -> Answer:
    """Show a strategy's plan: partition, synchroniser and place of each variable, predicted bytes."""
    request = PlanRequest(
        target=options.target(workload, strategy, edited, workers, replicas),
        live=options.is_watched(json=json),
        timeouts=timeouts(timeout_factor),
    )
    from harness import pipeline

    planned = pipeline.plan(request)
    return Answer(document=plan_document(planned), show=partial(_show, planned))


_PLACES = ("partition", "synchronizer", "destination", "group", "owner")


def _show(planned: Plan) -> None:
    for warning in planned.warnings:
        output.say(f"warning: {warning}")
    output.table(
        ["variable", "shape", "bytes", *_PLACES],
        [
            [
                node.variable,
                "x".join(map(str, node.shape)) or "scalar",
                output.n_bytes(node.bytes),
                "-" if node.partition is None else _partition(node.partition),
                *(_text(place) for place in (node.synchronizer, node.destination, node.group, node.owner)),
            ]
            for node in planned.nodes
        ],
    )
    output.say()
    output.say(f"payload, all workers together: {output.n_bytes(planned.payload_bytes_per_step)} per step")
    if planned.statistics:
        n_bytes = sum(layer.bytes for layer in planned.statistics)
        output.say(
            f"among it statistics of {len(planned.statistics)} layers: {output.n_bytes(n_bytes)} in each "
            "replica"
        )
    served = (f"{task}: {output.n_bytes(held)}" for task, held in enumerate(planned.server_bytes))
    output.say(f"server bytes: {', '.join(served) or 'none'}")
    output.say(f"worker bytes: {output.n_bytes(planned.worker_bytes)}")
    for note in planned.notes:
        output.say(f"note: {note}")


def _text(value: object) -> str:
    return "-" if value is None else str(value)


def _partition(partition: Partition) -> str:
    """A partition's axis and sizes, and of each part where it lives and with what it travels."""
    places = {
        "destinations": partition.destinations,
        "groups": partition.groups,
        "owners": partition.owners,
    }
    parts = [f"axis {partition.axis}: {_list(partition.sizes)}"]
    parts += [f"{name} {_list(values)}" for name, values in places.items() if values]
    return "; ".join(parts)


def _list(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))
