"""Record of one case in one repeat, and its JSON: a line of `results.jsonl`."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Literal

from harness.canonical import JsonValue, field_names, json_value
from harness.errors import NON_FINITE_GRADIENTS, NON_FINITE_LOSS, StoreError
from harness.records.checksums import require_sealed, sealed, unsealed
from harness.records.circumstances import Machine, Method, ModelSize, Provenance
from harness.records.costs import (
    Energy,
    GpuUse,
    InputWait,
    Link,
    ObserverEffect,
    PassCost,
    Preparation,
    TracedTimes,
)
from harness.records.outcome import (
    Aggregated,
    Equivalence,
    Evaluation,
    Failure,
    Resharding,
    Rounds,
    SavedCheckpoint,
    Stability,
    StepSeconds,
)

if TYPE_CHECKING:
    from pydantic import TypeAdapter


SCHEMA = 2
"""Since 2 every record carries its checksum."""

DIVERGED_KINDS = (NON_FINITE_LOSS, NON_FINITE_GRADIENTS)
"""Types of the failure of a training that has gone to pieces."""
KILLED_BY_FAULT = "killed-by-fault"
"""Failure type when an injected fault killed a worker."""
Status = Literal["ok", "failed", "skipped", "implausible"]
StrategyClass = Literal["exact", "bounded", "statistical", "control"]
Scalar = None | bool | int | float | str


def _json_name(name: str) -> str:
    # `class` is a word of Python's; only the JSON form can use it.
    return "class" if name == "strategy_class" else name


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One case and repeat. Field names are the contract's; missing is None, never -1 or 0.

    Bytes are sums of what all workers sent, per step; `tcp_matrix` holds bytes per step from task i to
    task j, tasks in plan order and dedicated servers last; seconds and bytes carry their unit in the name.
    `is_twin`: the baseline, timed once more under a name of its own, which is never a candidate.
    `exposed`: strangers on the network could reach the servers of the run.
    `variable_bytes` are those of variables and slots in the memory of each worker, a server's with it.
    `resharding`: of variables around host loops; None where none is partitioned there.
    `aggregation`: of gradients by a rule; None where they are added up. `evaluation`: of the model after the
    last step; None if not requested.
    `cpu_s_per_step`: processor time of each worker's process with all its threads, updates that end after
    their window left out.
    `gpus`: what those of all workers did; None where the case uses none.
    `input_s`: what steps wait for batches of a pipeline; None where batches are staged.
    `observer`: overhead of measuring, from further windows; None if not requested.
    `price_per_hour`: of all its workers together, in whatever currency the experiment's prices are.
    `warnings`: why the case is not what its strategy is chosen for, and what to choose instead.
    `preparation`: what passed before the first timed step.
    `passes`: over the graph of the first worker, in order; None where no graph is rewritten, and in records
    from before they were kept.
    `file_checksums`: name of a file in the repeat's folder → hash of its bytes.
    `payload_is_bound`: the payload is the most that can move, since the rows of sparse gradients vary.
    `period`: steps after which what a step does begins anew; a traced step is the first of one.
    `fused_update`: updates were left to TensorFlow's kernels where there are any.
    `wire_s`: what the payload takes on the busiest of the measured links, pushes and pulls one after the
    other where a step waits for both.
    `hosts`: number of the machine of each worker; bytes between different ones leave their machine.
    `gradient_bytes`: of one replica's dense gradients as they are in memory; None where some are sparse.
    `usual_name`: name of the strategy in the field, such as FSDP; None without one.
    """

    run: str
    case: str
    repeat: int
    order: int
    workload: str
    strategy: str
    strategy_class: StrategyClass
    provider: str
    device: str
    workers: int
    replicas: int
    status: Status
    schema: int = SCHEMA
    experiment: str | None = None
    spec_hash: str | None = None
    control: bool = False
    is_twin: bool = False
    workload_params: Mapping[str, Scalar] = field(default_factory=dict)
    strategy_params: Mapping[str, Scalar] = field(default_factory=dict)
    batch_size: int | None = None
    exposed: bool | None = None
    error: Failure | None = None
    examples_per_s: float | None = None
    step_s: StepSeconds | None = None
    input_s: InputWait | None = None
    warmup_steps: int | None = None
    rounds: Rounds | None = None
    stability: Stability | None = None
    cpu_s_per_step: tuple[float, ...] | None = None
    energy: Energy | None = None
    gpus: GpuUse | None = None
    observer: ObserverEffect | None = None
    price_per_hour: float | None = None
    payload_bytes_per_step: float | None = None
    payload_is_bound: bool | None = None
    wire_s: float | None = None
    period: int | None = None
    fused_update: bool | None = None
    gradient_bytes: int | None = None
    model: ModelSize | None = None
    tcp_bytes_per_step: float | None = None
    resent_bytes_per_step: float | None = None
    interface_bytes_per_step: float | None = None
    tcp_matrix: tuple[tuple[float | None, ...], ...] | None = None
    hosts: tuple[int, ...] | None = None
    exposed_comm_s: float | None = None
    traced_step: TracedTimes | None = None
    codec_s: float | None = None
    transform_s: float | None = None
    import_s: float | None = None
    provision_s: float | None = None
    preparation: Preparation | None = None
    nodes_before: int | None = None
    nodes_after: int | None = None
    passes: tuple[PassCost, ...] | None = None
    peak_rss_bytes: tuple[int | None, ...] | None = None
    variable_bytes: tuple[int, ...] | None = None
    resharding: Resharding | None = None
    aggregation: Aggregated | None = None
    evaluation: Evaluation | None = None
    loss: tuple[float | None, ...] | None = None
    equivalence: Equivalence | None = None
    link: Link | None = None
    checkpoint: SavedCheckpoint | None = None
    plausibility: str | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    started_utc: str | None = None
    wall_s: float | None = None
    method: Method | None = None
    machine: Machine | None = None
    provenance: Provenance | None = None
    comparison_key: str | None = None
    file_checksums: Mapping[str, str] = field(default_factory=dict)
    usual_name: str | None = None

    @property
    def is_broken_by_faults(self) -> bool:
        has_faults = self.method is not None and bool(self.method.faults)
        return has_faults and self.error is not None and self.error.type in (*DIVERGED_KINDS, KILLED_BY_FAULT)

    @property
    def median_examples_per_s(self) -> float | None:
        """Examples per second of the median step, which is what a person is shown as the rate.

        `examples_per_s` is that of all windows, in which one stall weighs as much as it took.
        """
        median_s = self.step_s.p50 if self.step_s else None
        if not median_s or not self.batch_size or median_s < 0 or self.batch_size < 0:
            return None
        return self.batch_size / median_s

    @property
    def cost_per_million_examples(self) -> float | None:
        rate = self.median_examples_per_s
        if self.price_per_hour is None or not rate:
            return None
        return self.price_per_hour / 3600 / rate * 1e6


NULLABLE = frozenset(item.name for item in dataclasses.fields(Record) if item.default is None)
"""Fields that may be missing; a record without one of the others is about no case."""
_SEALED_SINCE = 2
MOST_LINE_BYTES = 1 << 24
"""No record is as long: with a thousand tasks, the matrix of what these send each other takes that much."""


def to_document(record: Record) -> dict[str, JsonValue]:
    """Turn a record into the mapping that JSON, CSV and reports name fields by."""
    return {_json_name(name): json_value(getattr(record, name)) for name in field_names(Record)}


def to_json(record: Record) -> str:
    """Write a record with its checksum as one line of JSON, no newline; what is not finite becomes null."""
    return json.dumps(sealed(to_document(record)), separators=(",", ":"), allow_nan=False)


class NewerRecordError(StoreError):
    """A record of a later version, which is sound but cannot be read here."""


def from_json(line: str | bytes, *, without: Collection[str] = ()) -> Record:
    """Read one line; known fields must have their type, unknown ones are passed over.

    Args:
        without: fields that are taken for missing, whatever they hold.
    Raises:
        NewerRecordError: a later version wrote it.
        StoreError: for anything that is not a record this version understands.
    """
    from pydantic import ValidationError

    stored = _object(line)
    # Before anything that it says is believed, its schema included.
    document = unsealed(stored)
    schema = document.get("schema")
    if not isinstance(schema, int) or isinstance(schema, bool):
        raise StoreError(
            f"must be a whole number, got {schema!r}; this is not a stratbench record", field="schema"
        )
    if schema < 1:
        raise StoreError(f"must be 1 or more, got {schema}; this is not a stratbench record", field="schema")
    if schema > SCHEMA:
        raise NewerRecordError(
            f"this version reads up to {SCHEMA}, got {schema}; read the folder with {_version_of(document)}",
            field="schema",
        )
    if schema >= _SEALED_SINCE:
        require_sealed(stored)
    if without:
        line = json.dumps({name: value for name, value in document.items() if name not in without})
    try:
        record = _adapter().validate_json(line, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(map(str, first["loc"]))
        rule = first["msg"].replace("Input should be", "must be")
        raise StoreError(f"{rule}, got {first['input']!r:.80}", field=path) from None
    _require_usable(record)
    return record


def _require_usable(record: Record) -> None:
    """Refuse figures that nothing can be computed from."""
    rate, matrix, observer = record.examples_per_s, record.tcp_matrix, record.observer
    if rate is not None and rate <= 0.0:
        raise StoreError(f"must be above 0, got {rate!r}", field="examples_per_s")
    for name in ("mean", "p50", "p90", "p99") if record.step_s is not None else ():
        seconds = getattr(record.step_s, name)
        if seconds is not None and seconds <= 0.0:
            raise StoreError(f"must be above 0, got {seconds!r}", field=f"step_s.{name}")
    if matrix is not None and any(len(line) != len(matrix) for line in matrix):
        lengths = ", ".join(map(str, sorted({len(line) for line in matrix})))
        raise StoreError(
            f"must have as many cells in each line as lines, got {len(matrix)} lines of {lengths}",
            field="tcp_matrix",
        )
    if observer is not None and len(observer.with_s) != len(observer.without_s):
        raise StoreError(
            f"must have windows in pairs, got {len(observer.with_s)} with and {len(observer.without_s)} "
            "without",
            field="observer",
        )


def _version_of(document: Mapping[str, JsonValue]) -> str:
    provenance = document.get("provenance")
    versions = provenance.get("versions") if isinstance(provenance, dict) else None
    version = versions.get("stratbench") if isinstance(versions, dict) else None
    if not isinstance(version, str):
        return "a newer stratbench"
    return f"a newer stratbench, {version[:40]} or later, which wrote it"


def _object(line: str | bytes) -> dict[str, JsonValue]:
    if len(line) > MOST_LINE_BYTES:
        raise StoreError(f"a line of results.jsonl must be at most {MOST_LINE_BYTES:,} bytes, got more")
    try:
        document = json.loads(line, parse_constant=_refuse_constant, parse_int=_whole)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"a line of results.jsonl must be a JSON object: {error}") from None
    if not isinstance(document, dict):
        raise StoreError(f"a line of results.jsonl must be a JSON object, got {type(document).__name__}")
    return document


def _refuse_constant(token: str) -> JsonValue:
    raise ValueError(f"{token} is not JSON; missing numbers are null")


def _whole(text: str) -> int:
    # The range of floats, with which reports compute.
    if math.isinf(float(text)):
        raise ValueError(f"{text[:20]} is larger than any number of a record")
    return int(text)


@cache
def _adapter() -> TypeAdapter[Record]:
    # pydantic costs more to import than all of this package; writing records must not pay for it.
    from pydantic import ConfigDict, TypeAdapter, with_config

    return TypeAdapter(with_config(ConfigDict(alias_generator=_json_name, allow_inf_nan=False))(Record))
