"""Placement of variables by the plan of a row: read from its file, grouped, and described."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import cache
from itertools import islice
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from harness.records.record import Record
from harness.records.run_documents import PLAN
from harness.records.safe_text import printable
from harness.records.stored_run import StoreError
from reports.load import Run, legible
from reports.rows.parts import Placement, PlacementLine
from reports.rows.report import LeftOut

MOST_TASKS = 10_000
"""Most tasks of a plan, servers included."""
_MOST_WHOLE = 2**63
Size: TypeAlias = Annotated[int, Field(ge=0, le=_MOST_WHOLE)]
Whole: TypeAlias = Annotated[int, Field(ge=-_MOST_WHOLE, le=_MOST_WHOLE)]
Amount: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]
Name: TypeAlias = Annotated[str, AfterValidator(legible)]
Word: TypeAlias = Annotated[str, Field(max_length=200), AfterValidator(printable)]
"""Name defined by stratbench or TensorFlow, such as a data type."""
Text: TypeAlias = Annotated[str, Field(max_length=10_000), AfterValidator(printable)]
Shape: TypeAlias = Annotated[tuple[Whole, ...], Field(max_length=254)]
"""Limit of dimensions in TensorFlow."""


class PlanError(Exception):
    """A file without a valid plan."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredCompression:
    """Compressor and its options."""

    name: Word
    ratio: Amount | None = None
    rank: Whole | None = None
    levels: Whole | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredRepeated:
    """Values that are repeated, each time `step` more than the time before."""

    repeat: Whole | Annotated[tuple[Whole, ...], Field(min_length=1, max_length=MOST_TASKS)]
    times: Annotated[int, Field(ge=1, le=MOST_TASKS)]
    step: Whole = 0

    @property
    def values(self) -> tuple[int, ...]:
        return (self.repeat,) if isinstance(self.repeat, int) else self.repeat

    @property
    def least(self) -> int:
        return min(self.values) + min(0, (self.times - 1) * self.step)


def _length(listed: Sequence[int | StoredRepeated]) -> int:
    return sum(1 if isinstance(item, int) else item.times * len(item.values) for item in listed)


def _written_out(listed: Sequence[int | StoredRepeated]) -> Iterator[int]:
    """All numbers of a list, one by one."""
    for item in listed:
        if isinstance(item, int):
            yield item
        else:
            yield from (value + k * item.step for k in range(item.times) for value in item.values)


def _short(listed: tuple[int | StoredRepeated, ...]) -> tuple[int | StoredRepeated, ...]:
    if _length(listed) > MOST_TASKS:
        raise ValueError(f"must be at most {MOST_TASKS} numbers")
    return listed


def _not_negative(listed: tuple[int | StoredRepeated, ...]) -> tuple[int | StoredRepeated, ...]:
    if any(isinstance(item, StoredRepeated) and item.least < 0 for item in listed):
        raise ValueError("must not be negative")
    return listed


Listed: TypeAlias = Annotated[tuple[Whole | StoredRepeated, ...], AfterValidator(_short)]
"""Numbers and repetitions as stored, since a small file may state many numbers."""
Sizes: TypeAlias = Annotated[
    tuple[Size | StoredRepeated, ...], AfterValidator(_short), AfterValidator(_not_negative)
]


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredPartition:
    """Partition of a variable along one axis."""

    axis: Whole
    sizes: Sizes
    destinations: Listed | None = None
    groups: Listed | None = None
    owners: Listed | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredNode:
    """Plan of one variable, as stored in a run folder."""

    variable: Name
    shape: Shape
    dtype: Word
    bytes: Size
    sparse: bool
    synchronizer: Word
    partition: StoredPartition | None = None
    destination: Whole | None = None
    group: Whole | None = None
    proxy: bool = False
    compressor: StoredCompression | None = None
    transport: Word | None = None
    owner: Whole | None = None
    whole_gradient: bool = False
    gathered: bool = False
    in_parts: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredPlan:
    """Plan of all variables, as stored in a run folder."""

    nodes: tuple[StoredNode, ...]
    replicas_per_task: Sizes = ()
    strategy_params: Annotated[Mapping[Word, bool | Whole | Amount | Text | None], Field(max_length=200)] = (
        field(default_factory=dict)
    )
    server_bytes: Sizes = ()
    worker_bytes: Size = 0
    notes: Annotated[tuple[Text, ...], Field(max_length=1_000)] = ()


def stored_plan(data: bytes) -> StoredPlan:
    """Read the bytes of `plan.json`.

    Raises:
        PlanError: they are not a valid plan.
    """
    try:
        return _adapter().validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(str(piece)[:200] for piece in first["loc"])
        raise PlanError(f"must hold a plan: {path}: {first['msg']}, got {first['input']!r:.80}") from None


@cache
def _adapter() -> TypeAdapter[StoredPlan]:
    return TypeAdapter(StoredPlan)


_GATHERED = {"robust-gather": "by a rule on every worker", "robust-servers": "by a rule on servers"}
_SUMS = {
    "all-reduce": "all-reduce",
    "hierarchical-all-reduce": "all-reduce within workers, then between them",
    "average": "average of copies",
    "cross-replica-sum": "sum between cores",
}
_TRANSPORTS = {"tcp": "the workers' own ring", "ring": "TensorFlow's ring", "nccl": "NCCL"}


def _is_alone(plan: StoredPlan) -> bool:
    """True if there is one replica."""
    return [*islice(_written_out(plan.replicas_per_task), 2)] == [1]


def storage_of(node: StoredNode, plan: StoredPlan) -> str:
    """Tasks, servers or replicas that store a variable, and its parts."""
    if _is_alone(plan):
        return "the only replica"
    if node.partition is not None:
        return _storage_of_parts(node, node.partition)
    if node.destination is not None:
        return f"server {node.destination}{_proxy(node)}"
    if node.owner is not None:
        is_alone = node.gathered or node.synchronizer == "none"
        return f"replica {node.owner} alone" if is_alone else f"all replicas, updated by replica {node.owner}"
    return "all replicas, in equal parts during host loops" if node.in_parts else "all replicas"


def _storage_of_parts(node: StoredNode, partition: StoredPartition) -> str:
    parts = f"{_length(partition.sizes)} parts along axis {partition.axis}"
    if partition.destinations is not None:
        return f"{parts}, on {_listed('server', partition.destinations)}{_proxy(node)}"
    if partition.owners is not None:
        treatment = "stored" if node.gathered or node.synchronizer == "none" else "updated"
        return f"{parts}, {treatment} by {_listed('replica', partition.owners)}"
    return f"{parts}, on all replicas"


def synchronization_of(node: StoredNode, plan: StoredPlan) -> str:
    """Synchronization of a variable's gradient, or of its new value, between replicas."""
    if node.synchronizer == "none":
        return "not at all"
    if node.synchronizer == "ps":
        what = "rows pushed" if node.sparse else "pushed"
        order = "" if plan.strategy_params.get("sync", True) else ", asynchronously"
        text = f"{what} to {'their servers' if node.partition else 'the server'}{order}"
    elif node.synchronizer in _GATHERED:
        text = f"combined {_GATHERED[node.synchronizer]}"
    elif _owners(node):
        text = "summed for every replica" if node.whole_gradient else "summed for its owner"
    elif _gathers_rows(node):
        text = "rows gathered by all"
    else:
        text = _SUMS.get(node.synchronizer, node.synchronizer)
    transport = f" over {_TRANSPORTS[node.transport]}" if node.transport in _TRANSPORTS else ""
    return text + transport + _compressed(node.compressor)


_ONE_REPLICA = "There is one replica, so nothing has to be synchronized."
_REASONS = {
    "local on servers": "It has no gradient, and is stored with the variables that servers update.",
    "local with an owner": "Only its owner stores and updates it.",
    "local": "Each replica has its own copy, which is not synchronized.",
    "server": "A server stores it, receives its gradients, and sends its value.",
    "servers": "Servers store its parts, receive their gradients, and send their values.",
    "rule": "The rule{rule} needs every worker's gradient.",
    "average": "Each replica updates its own copy; copies are averaged every {period} steps.",
    "average at times": "Each replica updates its own copy; copies are averaged periodically.",
    "cross-replica-sum": "All cores run one computation, which sums between them.",
    "owner": "One replica updates it for all.",
    "owners": "One replica updates each part for all.",
    "hierarchical-all-reduce": "Reduces to one leader per worker, sums between leaders, then broadcasts.",
    "rows": "Its gradient is sparse: all replicas gather its rows.",
    "sum": "Each replica updates its own copy with the sum, which is sent in buckets.",
}
"""Main reason of a plan for the treatment of a variable."""


def reasons_for(node: StoredNode, plan: StoredPlan) -> str:
    """Reasons for the treatment of a variable: the main one, then a sentence per further setting."""
    if _is_alone(plan):
        return _ONE_REPLICA
    rule, period = (plan.strategy_params.get(name) for name in ("rule", "period"))
    reason = _reason(node, is_periodic=period is not None)
    further = (
        (node.synchronizer == "ps" and node.sparse, "Only the rows that a step uses are sent."),
        (reason in ("owner", "owners") and not node.gathered, "It sends its new value to the others."),
        (node.proxy, "A worker's replicas read it from one copy on their host."),
        (node.gathered, "In each step the other replicas gather its value before they read it."),
        (node.whole_gradient, "Other updates read its gradient, so every replica needs it."),
        (node.compressor is not None, "Its gradient is compressed."),
        (node.in_parts, "During a host loop, each replica stores an equal part."),
    )
    text = _REASONS[reason].format(rule="" if rule is None else f" {rule!s:.200}", period=f"{period!s:.200}")
    return " ".join([text, *(sentence for holds, sentence in further if holds)])


def _reason(node: StoredNode, *, is_periodic: bool) -> str:
    synchronizer, is_owned = node.synchronizer, _owners(node)
    if synchronizer == "none":
        return "local on servers" if _served(node) else "local with an owner" if is_owned else "local"
    if synchronizer == "ps":
        return "servers" if node.partition else "server"
    if synchronizer == "average":
        return "average" if is_periodic else "average at times"
    if synchronizer in _GATHERED:
        return "rule"
    if is_owned and synchronizer != "cross-replica-sum":
        return "owners" if node.partition else "owner"
    return synchronizer if synchronizer in _REASONS else "rows" if _gathers_rows(node) else "sum"


def _served(node: StoredNode) -> bool:
    in_parts = node.partition is not None and node.partition.destinations is not None
    return node.destination is not None or in_parts


def _owners(node: StoredNode) -> bool:
    in_parts = node.partition is not None and node.partition.owners is not None
    return node.owner is not None or in_parts


def _gathers_rows(node: StoredNode) -> bool:
    """True if sparse rows are gathered, by collectives or by the workers' own ring."""
    in_no_bucket = node.group is None and node.partition is None
    is_sum = node.synchronizer in ("all-reduce", "hierarchical-all-reduce")
    return node.sparse and is_sum and not _owners(node) and (in_no_bucket or node.transport == "tcp")


def _proxy(node: StoredNode) -> str:
    return ", and a copy on each worker's host" if node.proxy else ""


def _compressed(compressor: StoredCompression | None) -> str:
    if compressor is None:
        return ""
    options = [
        f"{name} {value:g}" for name in ("ratio", "rank", "levels") if (value := getattr(compressor, name))
    ]
    return f", compressed: {', '.join([compressor.name, *options])}"


def _listed(noun: str, numbers: Sequence[int | StoredRepeated]) -> str:
    distinct = sorted(set(_written_out(numbers)))
    if len(distinct) == 1:
        return f"{noun} {distinct[0]}"
    if len(distinct) > 2 and distinct == list(range(distinct[0], distinct[-1] + 1)):
        return f"{noun}s {distinct[0]} to {distinct[-1]}"
    first = ", ".join(map(str, distinct[:8]))
    return f"{noun}s {first}{' and others' if len(distinct) > 8 else ''}"


MOST_LINES = 60
"""Most lines of one row."""
MOST_LINES_OF_ALL = 1_000
MOST_PLAN_BYTES = 1 << 26
_LEAST_LINES = 4
_NUMBER = re.compile(r"\d+")
_MOST_LETTERS = 200
"""Most letters of a name, or of an option's value."""
_MOST_NOTES = 20
_MOST_NOTE_LETTERS = 1_000


def lines_of_each(n_rows: int) -> int:
    """Most lines of each of n rows."""
    return max(_LEAST_LINES, min(MOST_LINES, MOST_LINES_OF_ALL // max(1, n_rows)))


def placement_of(
    run: Run, usable: Sequence[Record], left_out: list[LeftOut], *, most_lines: int = MOST_LINES
) -> Placement | None:
    """Placement by the plan of the first usable repeat; None if no repeat has a readable plan.

    Args:
        left_out: list to which unreadable plans are added.
    """
    for record in sorted(usable, key=lambda record: record.repeat):
        path = run.stored.name_of(record, PLAN)
        try:
            data = run.stored.file(record, PLAN, most_bytes=MOST_PLAN_BYTES)
            if data is not None:
                return _placement(stored_plan(data), path, most_lines)
        except (StoreError, PlanError) as error:
            item = LeftOut(
                where=f"{run.name}: {record.case}/{record.repeat}/{PLAN}", why=f"{error}; it is not shown"
            )
            if all(item.where != other.where for other in left_out):
                left_out.append(item)
    return None


def _placement(plan: StoredPlan, path: str, most_lines: int) -> Placement:
    groups: dict[tuple[tuple[object, ...], tuple[str, str, str]], list[StoredNode]] = {}
    for node in plan.nodes:
        alike = (_NUMBER.sub("#", node.variable), node.shape, node.dtype, node.bytes)
        words = (storage_of(node, plan), synchronization_of(node, plan), reasons_for(node, plan))
        groups.setdefault((alike, words), []).append(node)
    lines = [_line(nodes, *words) for (_, words), nodes in groups.items()]
    largest = sorted(range(len(lines)), key=lambda i: -lines[i].n * lines[i].bytes)[:most_lines]
    return Placement(
        path=path,
        lines=tuple(lines[i] for i in sorted(largest)),
        n_more=sum(line.n for line in lines) - sum(lines[i].n for i in largest),
        server_bytes=tuple(_written_out(plan.server_bytes)),
        worker_bytes=plan.worker_bytes,
        notes=_notes(plan.notes),
    )


def _notes(notes: Sequence[str]) -> tuple[str, ...]:
    clipped = [
        note if len(note) <= _MOST_NOTE_LETTERS else f"{note[:_MOST_NOTE_LETTERS]} …"
        for note in notes[:_MOST_NOTES]
    ]
    n_more = len(notes) - len(clipped)
    return (*clipped, *([f"{n_more} more notes are in the plan's file"] if n_more else []))


def _line(nodes: Sequence[StoredNode], where: str, synchronized: str, reason: str) -> PlacementLine:
    first = nodes[0]
    name = first.variable if len(nodes) == 1 else _pattern([node.variable for node in nodes])
    buckets = {group for node in nodes for group in _buckets(node)}
    numbered = f", {_bucket_words(sorted(buckets))}" if buckets else ""
    return PlacementLine(
        name=name[:_MOST_LETTERS],
        n=len(nodes),
        shape=first.shape,
        dtype=first.dtype,
        bytes=first.bytes,
        where=where,
        synchronized=synchronized + numbered,
        why=reason,
    )


def _pattern(names: Sequence[str]) -> str:
    """Common name with `#` for each number that differs."""
    numbers = list(zip(*(_NUMBER.findall(name) for name in names), strict=True))
    differs = iter(len(set(column)) > 1 for column in numbers)
    return _NUMBER.sub(lambda match: "#" if next(differs) else match[0], names[0])


def _buckets(node: StoredNode) -> tuple[int, ...]:
    if node.partition is not None and node.partition.groups is not None:
        return tuple(_written_out(node.partition.groups))
    return () if node.group is None else (node.group,)


def _bucket_words(buckets: Sequence[int]) -> str:
    if len(buckets) == 1:
        return f"bucket {buckets[0]}"
    if buckets[-1] - buckets[0] == len(buckets) - 1:
        return f"buckets {buckets[0]} to {buckets[-1]}"
    return f"{len(buckets)} buckets"
