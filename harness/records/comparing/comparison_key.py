"""Key that two records of different runs share if they may be compared."""

from __future__ import annotations

import dataclasses

from harness.canonical import canonical_hash
from harness.records.facts.circumstances import Method
from harness.records.record import Record
from harness.records.record_json import plain

_LATER = (
    "rounds",
    "window_s",
    "precision",
    "xla",
    "tf32",
    "input",
    "input_placement",
    "freed_memory",
    "scenario",
    "faults",
    "replicas_on_gpus",
)
"""Of a method: fields that are part of the key only where they are not as in records from before them."""
_SETTINGS = ("governor", "turbo", "hyper_threads", "gpus")
_NOT_MEASURED = ("seed", "until_ci")


def comparison_key(record: Record) -> str:
    """Hash what must be equal before two records of different runs may be compared; 16 hex digits."""
    return canonical_hash(comparable_facts(record))[:16]


def comparable_facts(record: Record) -> dict[str, object]:
    """What must be equal before two records of different runs may be compared.

    It covers workload, strategy, shape, batch, method and the machine, and leaves out the code: a change of
    the code is what such a comparison is made to see.
    """
    machine = plain(record.machine)
    if isinstance(machine, dict):
        # A patched kernel is the same machine; a run before and after it should still be lined up.
        machine.pop("kernel", None)
        # Records from before these were looked at keep their key.
        machine = {key: value for key, value in machine.items() if key not in _SETTINGS or value is not None}
    return {
        "workload": record.workload,
        "workload_params": record.workload_params,
        "strategy": record.strategy,
        "strategy_params": record.strategy_params,
        "provider": record.provider,
        "device": record.device,
        "workers": record.workers,
        "replicas": record.replicas,
        "batch_size": record.batch_size,
        "requested_mbit": record.link.requested_mbit if record.link else None,
        # Records from before links were limited keep their key.
        **({"links": record.link.asked} if record.link and record.link.workers else {}),
        "method": None if record.method is None else _measured(record.method),
        "machine": machine,
    }


def _measured(method: Method) -> dict[str, object]:
    """What of a method bears on what is measured."""
    values = {item.name: (getattr(method, item.name), item.default) for item in dataclasses.fields(method)}
    if method.tf32:
        # TensorFlow's own choice, which GPUs had before it was recorded.
        del values["tf32"]
    return {
        name: value
        for name, (value, default) in values.items()
        if name not in _NOT_MEASURED and (name not in _LATER or value != default)
    } | {"sparse_duplicates": _duplicates(method)}


def _duplicates(method: Method) -> str:
    """`kept` or `merged`: a sum that changes nothing, and a step without rows, are as records always said."""
    return "kept" if method.sparse_duplicates == "kept" else "merged"
