"""Key that two records of different runs share if they may be compared."""

from __future__ import annotations

from collections.abc import Mapping

from harness.canonical import canonical_hash
from harness.records.record import Record
from harness.records.record_json import plain

_LATER: Mapping[str, object] = {
    "rounds": None,
    "window_s": None,
    "precision": "float32",
    "xla": False,
    "input": "staged",
}
"""Circumstances that could not always be chosen, and what stands for those of records from before."""
_SETTINGS = ("governor", "turbo", "hyper_threads")
_NOT_MEASURED = ("seed", "until_ci")


def comparison_key(record: Record) -> str:
    """Hash what must be equal before two records of different runs may be compared; 16 hex digits.

    It covers workload, strategy, shape, batch, method and the machine, and leaves out the code: a change of
    the code is what such a comparison is made to see.
    """
    machine = plain(record.machine)
    if isinstance(machine, dict):
        # A patched kernel is the same machine; a run before and after it should still be lined up.
        machine.pop("kernel", None)
        # Records from before these were looked at keep their key.
        machine = {key: value for key, value in machine.items() if key not in _SETTINGS or value is not None}
    method = plain(record.method)
    if isinstance(method, dict):
        for name in _NOT_MEASURED:
            method.pop(name, None)
        method = {
            key: value
            for key, value in method.items()
            if key not in _LATER or value not in (None, _LATER[key])
        }
    return canonical_hash(
        {
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
            "method": method,
            "machine": machine,
        }
    )[:16]
