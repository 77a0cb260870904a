"""`stratbench plan`: where a strategy puts each variable, and what it will send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from harness.cli import options, output
from harness.cli.answer import Answer
from harness.measure.timeouts import timeouts
from harness.requests import PlanRequest

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

    document = pipeline.plan(request)
    return Answer(document=document, show=partial(_show, document))


_PLACES = ("partition", "synchronizer", "destination", "group", "owner")


def _show(document: Mapping[str, object]) -> None:
    for warning in _texts(document.get("warnings")):
        output.say(f"warning: {warning}")
    nodes = document["nodes"]
    rows = [item for item in nodes if isinstance(item, Mapping)] if isinstance(nodes, Sequence) else []
    output.table(
        ["variable", "shape", "bytes", *_PLACES],
        [
            [
                str(item["variable"]),
                _shape(item["shape"]),
                output.n_bytes(item["bytes"]),
                *(_text(item.get(key)) for key in _PLACES),
            ]
            for item in rows
        ],
    )
    output.say()
    output.say(
        f"payload, all workers together: {output.n_bytes(document['payload_bytes_per_step'])} per step"
    )
    statistics = document.get("statistics")
    if isinstance(statistics, Sequence) and statistics:
        n_bytes = sum(item["bytes"] for item in statistics if isinstance(item, Mapping))
        output.say(
            f"among it statistics of {len(statistics)} layers: {output.n_bytes(n_bytes)} in each replica"
        )
    for key in ("server_bytes", "worker_bytes"):
        output.say(f"{key.replace('_', ' ')}: {_bytes(document[key])}")
    for note in _texts(document["notes"]):
        output.say(f"note: {note}")


def _texts(value: object) -> Sequence[object]:
    return value if isinstance(value, Sequence) else ()


def _shape(shape: object) -> str:
    return "x".join(map(str, shape)) or "scalar" if isinstance(shape, Sequence) else _text(shape)


def _text(value: object) -> str:
    return "-" if value is None else _partition(value) if isinstance(value, Mapping) else str(value)


def _partition(value: Mapping[str, object]) -> str:
    """A partition's axis and sizes, and of each part where it lives and with what it travels."""
    told = [f"axis {value['axis']}: {_list(value['sizes'])}"]
    told += [f"{key} {_list(value[key])}" for key in ("destinations", "groups", "owners") if value.get(key)]
    return "; ".join(told)


def _list(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, Sequence) else str(value)


def _bytes(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {output.n_bytes(item)}" for name, item in value.items()) or "none"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(f"{index}: {output.n_bytes(item)}" for index, item in enumerate(value)) or "none"
    return output.n_bytes(value)
