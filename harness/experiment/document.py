"""An experiment written as a file that resolves to the same experiment, and its hash."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from harness.canonical import JsonValue, canonical_hash
from harness.cluster import link_limits
from harness.cluster.connection import CONNECTION_KEYS, NO_CLUSTER, Connection, Slice
from harness.experiment.references import Scalar, StrategyRef, WorkloadRef
from harness.experiment.spec import (
    NO_FAULTS,
    SHAPE_KEYS,
    USUAL_ROUNDS,
    USUAL_WINDOW_S,
    CaseFilter,
    Checkpoints,
    ClusterSpec,
    ExperimentSpec,
    Scenario,
    Until,
)
from harness.records.facts.circumstances import AS_WRITTEN

_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def spec_hash(spec: ExperimentSpec) -> str:
    """Canonical hash of the resolved experiment; 64 hex digits, equal for equal experiments."""
    return canonical_hash(spec_document(spec))


def spec_document(spec: ExperimentSpec) -> dict[str, JsonValue]:
    """Write the experiment as a file that resolves to the same experiment.

    Keys that came later are left out at their default, so that runs from before them keep their hash.
    """
    measure = spec.measure
    return {
        "name": spec.name,
        "workloads": [_ref_document(ref) for ref in spec.workloads],
        "strategies": [_ref_document(ref) for ref in spec.strategies],
        "cluster": {
            **_cluster_document(spec.cluster),
            **_connection_document(spec.connection),
            **({"price_per_hour": dict(spec.prices)} if spec.prices else {}),
        },
        "measure": {
            "warmup_steps": "auto" if measure.warmup_steps is None else measure.warmup_steps,
            "steps": measure.steps,
            "repeats": measure.repeats,
            "interleave": measure.interleave,
            "seed": measure.seed,
            "batch": measure.batch,
            **({} if measure.trace else {"trace": False}),
            **({} if measure.rounds == USUAL_ROUNDS else {"rounds": measure.rounds}),
            **({} if measure.window_s == USUAL_WINDOW_S else {"window_s": measure.window_s}),
            **({} if measure.until is None else {"until": _until_document(measure.until)}),
            **({"aa": True} if measure.aa else {}),
            **({"observer": True} if measure.observer else {}),
            **({"exposed_comm": True} if measure.exposed_comm else {}),
            **({"evaluate": True} if measure.evaluate else {}),
            **(
                {}
                if measure.precision == (AS_WRITTEN,)
                else {"precision": _sweep_document(measure.precision)}
            ),
            **({} if measure.xla == (False,) else {"xla": _sweep_document(measure.xla)}),
            **({} if measure.tf32 == (True,) else {"tf32": _sweep_document(measure.tf32)}),
            **({} if measure.input == "staged" else {"input": measure.input}),
        },
        "matrix": {
            "include": [_filter_document(item) for item in spec.include],
            "exclude": [_filter_document(item) for item in spec.exclude],
        },
        "compare": {
            "baseline": str(spec.baseline),
            **({} if spec.goal == "fastest" else {"goal": spec.goal}),
        },
        **({} if spec.checkpoint == Checkpoints() else {"checkpoint": _checkpoint_document(spec.checkpoint)}),
        **({} if spec.scenarios == (NO_FAULTS,) else {"faults": _scenarios_document(spec.scenarios)}),
    }


def _cluster_document(cluster: ClusterSpec) -> dict[str, JsonValue]:
    sweeps = {key: getattr(cluster, field) for field, key in SHAPE_KEYS.items()}
    if cluster.image == (None,):
        del sweeps["image"]
    return {
        **{key: _sweep_document([_value(key, value) for value in values]) for key, values in sweeps.items()},
        **({"share_gpus": True} if cluster.share_gpus == (True,) else {}),
        "link": {
            "rate_mbit": _sweep_document(cluster.rate_mbit),
            **link_limits.other_keys(cluster.burst_kb[0], cluster.worker_links[0]),
        },
    }


def _connection_document(connection: Connection) -> dict[str, JsonValue]:
    """What differs from no cluster."""
    return {
        key: dataclasses.asdict(value) if isinstance(value, Slice) else str(value)
        for key in CONNECTION_KEYS
        if (value := getattr(connection, key)) != getattr(NO_CLUSTER, key)
    }


def _until_document(until: Until) -> JsonValue:
    return {"ratio_ci": f"{100 * until.ratio_ci:.12g}%", "at_most": until.at_most_s}


def _checkpoint_document(checkpoint: Checkpoints) -> JsonValue:
    restore = checkpoint.restore
    return {"save": checkpoint.save, "restore": None if restore is None else str(restore)}


def _scenarios_document(scenarios: Sequence[Scenario]) -> JsonValue:
    return {scenario.name: [dict(fault.document()) for fault in scenario.faults] for scenario in scenarios}


def _ref_document(ref: StrategyRef | WorkloadRef) -> JsonValue:
    """A mapping, or text where there are no parameters or one of them is called `name`, too."""
    if not ref.params or "name" in ref.params:
        return str(ref)
    name = ref.name if isinstance(ref, StrategyRef) else ref.reference
    return {"name": name, **{key: ref.params[key] for key in sorted(ref.params)}}


def _sweep_document(values: Sequence[Scalar]) -> JsonValue:
    return values[0] if len(values) == 1 else list(values)


def _filter_document(item: CaseFilter) -> JsonValue:
    refs: dict[str, StrategyRef | WorkloadRef | None] = {"workload": item.workload, "strategy": item.strategy}
    document: dict[str, JsonValue] = {
        **{key: _ref_document(ref) for key, ref in refs.items() if ref is not None},
        **({} if item.scenario is None else {"faults": item.scenario}),
        **{SHAPE_KEYS[field]: _value(SHAPE_KEYS[field], value) for field, value in item.shape},
    }
    return document


def _value(key: str, value: Scalar) -> Scalar:
    """A value of a shape as the file says it."""
    if key != "memory_per_worker" or not isinstance(value, int):
        return value
    for unit, scale in _UNITS:
        if value % scale == 0:
            return f"{value // scale}{unit}"
    return value
