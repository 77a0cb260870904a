"""Record of one case in one repeat, and its JSON: a line of `results.jsonl`."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Literal

from harness.canonical import JsonValue, field_names, json_value
from harness.errors import NON_FINITE_GRADIENTS, NON_FINITE_LOSS, StoreError
from harness.records.checksums import require_checksum, with_checksum, without_checksum
from harness.records.conditions import Machine, Method, ModelSize, Provenance, TimedUnit
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
"""Version of the format; from 2 on, every record carries its checksum."""

DIVERGED_KINDS = (NON_FINITE_LOSS, NON_FINITE_GRADIENTS)
"""Failure types of a training that diverged."""
KILLED_BY_FAULT = "killed-by-fault"
"""Failure type when an injected fault killed a worker."""
MANY_RETRANSMITS = 0.01
"""Share of the bytes sent from which on a record notes that TCP sent them again."""
CORES_SHARED = "workers share cores"
WARMUP_UNSETTLED = "warm-up did not settle"
RETRANSMITS = f"more than {MANY_RETRANSMITS:.0%} TCP retransmits"
"""First words of the notes of a record that reports recognize."""
Status = Literal["ok", "failed", "skipped", "implausible"]
StrategyClass = Literal["exact", "bounded", "statistical", "control"]
Scalar = None | bool | int | float | str


def _json_name(name: str) -> str:
    # `class` is a word of Python's; only the JSON form can use it.
    return "class" if name == "strategy_class" else name


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One case and repeat. Field names are fixed by the contract; a missing value is None, never -1 or 0.

    Bytes are sums over all workers, per step.

    Attributes:
        tcp_matrix: bytes per step from task i to task j; tasks in plan order, dedicated servers last.
        is_twin: True for the second copy of the baseline in an A/A test, which is never a candidate.
        exposed: True if the network could reach the run's servers.
        variable_bytes: variables and slots in the memory of each worker, servers' included.
        resharding: resharding of variables around host loops; None if none is partitioned there.
        aggregation: aggregation of gradients by a rule; None if they are added up.
        evaluation: metrics after the last step; None if not requested.
        cpu_s_per_step: processor time of each worker's process and its threads, without updates that end
            after their window.
        gpus: use of all workers' GPUs; None without GPUs.
        input_s: waiting time for batches of a pipeline; None if batches are staged.
        observer: overhead of measuring, from further windows; None if not requested.
        price_per_hour: price of all workers together, in the experiment's currency.
        warnings: reasons why the strategy does not do here what it is for, and alternatives.
        preparation: time before the first timed step.
        passes: costs of passes over the first worker's graph, in order; None if no graph is rewritten, or in
            older records.
        file_checksums: name of a file in the repeat's folder → hash of its bytes.
        payload_is_bound: True if the payload is an upper limit, because rows of sparse gradients vary.
        period: steps after which the kinds of steps repeat; a traced step is the first of a period.
        fused_update: True if updates use TensorFlow's fused kernels where they exist.
        hosts: number of each worker's machine; bytes between different machines leave them.
        gradient_bytes: size of one replica's dense gradients in memory; None if some are sparse.
        usual_name: common name of the strategy, such as FSDP; None without one.
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
        """Examples per second of the median step, the rate that reports show.

        `examples_per_s` is the mean rate of all windows, stalls included.
        """
        median_s = self.median_step_s
        if not median_s or not self.batch_size or median_s < 0 or self.batch_size < 0:
            return None
        return self.batch_size / median_s

    @property
    def median_step_s(self) -> float | None:
        return self.step_s.p50 if self.step_s else None

    @property
    def timed_unit(self) -> TimedUnit:
        return "step" if self.method is None else self.method.timed_unit

    @property
    def cost_per_million_examples(self) -> float | None:
        rate = self.median_examples_per_s
        if self.price_per_hour is None or not rate:
            return None
        return self.price_per_hour / 3600 / rate * 1e6


NULLABLE = frozenset(item.name for item in dataclasses.fields(Record) if item.default is None)
"""Fields that may be missing; a record without one of the others is not a record of a case."""
_CHECKSUMS_SINCE = 2
MOST_LINE_BYTES = 1 << 24
"""Longest record: the matrix of bytes between a thousand tasks takes this much."""


def to_document(record: Record) -> dict[str, JsonValue]:
    """Convert a record to a mapping with the field names of JSON, CSV and reports."""
    return {_json_name(name): json_value(getattr(record, name)) for name in field_names(Record)}


def to_json(record: Record) -> str:
    """Format a record with its checksum as one line of JSON; numbers that are not finite become null."""
    return json.dumps(with_checksum(to_document(record)), separators=(",", ":"), allow_nan=False)


class NewerRecordError(StoreError):
    """A record of a later version, which is valid but cannot be read here."""


def from_json(line: str | bytes, *, without: Collection[str] = ()) -> Record:
    """Read one line; known fields must have their type, unknown ones are ignored.

    Args:
        without: fields to treat as missing.
    Raises:
        NewerRecordError: a later version wrote it.
        StoreError: it is not a record that this version understands.
    """
    from pydantic import ValidationError

    stored = _object(line)
    # Before any field is trusted, its schema included.
    document = without_checksum(stored)
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
    if schema >= _CHECKSUMS_SINCE:
        require_checksum(stored)
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
    if (record.period or 1) > 1 and record.step_s is not None and record.timed_unit == "step":
        # An older version took percentiles of single steps, most of them without the exchange.
        steps = replace(record.step_s, p50=record.step_s.mean, p90=None, p99=None)
        return replace(record, step_s=steps)
    return record


def _require_usable(record: Record) -> None:
    """Refuse figures that cannot be used in computations."""
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
    # The range of floats, which reports compute with.
    if math.isinf(float(text)):
        raise ValueError(f"{text[:20]} is larger than any number of a record")
    return int(text)


@cache
def _adapter() -> TypeAdapter[Record]:
    # pydantic costs more to import than all of this package; writing records must not pay for it.
    from pydantic import ConfigDict, TypeAdapter, with_config

    return TypeAdapter(with_config(ConfigDict(alias_generator=_json_name, allow_inf_nan=False))(Record))
