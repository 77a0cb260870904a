"""All-gather: owners send values to all other replicas, by TensorFlow's collectives or the ring."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice, product
from typing import TypeAlias

from strategies.ir.graph import Node, Shape
from strategies.ir.train_graph import BEFORE_ALL, Block, TrainGraph, Transfer
from strategies.ir.traversal import at_level
from strategies.numerics.shards import all_gather
from strategies.passes.collectives.buckets import (
    Member,
    ShardBucket,
    in_vectors,
    range_blocks,
    shard_buckets,
)
from strategies.passes.collectives.members import instance_keys
from strategies.passes.collectives.tcp_ring import Dims, Exchange, carry_out, give
from strategies.plan.partitions import OwnedParts
from strategies.plan.sharding import row_length
from strategies.tf_bridge.attrs import dtype_number
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import Replica, Topology

Copy: TypeAlias = tuple[str, int | None]
"""Name of a value's exchange, and rank of the replica that has the copy."""
Names: TypeAlias = tuple[str, ...]
"""Names of members that arrive as one tensor."""


@dataclass(slots=True, kw_only=True)
class GatheredValues:
    """Additions of one task to its step.

    Attributes:
        values: copy of a variable → tensor of its value, which another replica owns.
        wholes: joined variables and rank → tensor of their values, one behind the other along their axis.
        done: nodes that run after the exchanges; for the ring, once everything has been handed over.
        last_waits: last node that waits for the ring, None without a ring.
    """

    nodes: list[Node] = field(default_factory=list)
    values: dict[Copy, str] = field(default_factory=dict)
    wholes: dict[tuple[Names, int], str] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    last_waits: tuple[str, ...] = ()
    transfers: list[Transfer] = field(default_factory=list)


def gather_buckets(
    step: TrainGraph, shards: Iterable[OwnedParts], buckets: Sequence[Sequence[str]]
) -> tuple[ShardBucket, ...]:
    """Make the buckets of new values that owners send, one value for each update of a variable.

    Args:
        shards: variables whose new values are sent.
        buckets: names of the variables of each bucket.
    """
    levels: dict[str, dict[int, None]] = {}
    for region in step.regions:
        levels.setdefault(region.variable, {})[region.level] = None
    types = {v.name: v.dtype for v in step.variables}
    members = [
        Member(name=at_level(owned.variable, level), dtype=types[owned.ranges[0]], shards=owned, level=level)
        for owned in shards
        for level in levels.get(owned.ranges[0], ())
    ]
    return shard_buckets("sync/gather", members, buckets)


def gather_values(
    buckets: Sequence[ShardBucket],
    carried: Sequence[ShardBucket],
    own_values: Mapping[Copy, str],
    task: int,
    topology: Topology,
    hints: Mapping[str, str],
    *,
    group_key: int,
    joins: Container[Names] = (),
) -> GatheredValues:
    """Make the nodes by which local replicas send the values that they own and receive those of others.

    Args:
        buckets: buckets of TensorFlow's collectives. carried: buckets of the workers' own transport.
        own_values: copy of a variable → tensor of its value, for copies that local replicas own.
        hints: variable → TensorFlow's implementation for its bucket, by default `auto`.
        group_key: key of the group of all replicas, not used by another call for the same step.
        joins: members that arrive as one tensor, in the order of their bucket; several only if `carried`.
    """
    gathered = GatheredValues()
    for level in sorted({bucket.level for bucket in carried}):
        of_level = [bucket for bucket in carried if bucket.level == level]
        _gather_by_ring(gathered, of_level, own_values, task, topology, joins)
    order = topology.collective_order()
    names = {b.name: b.key_names("piece", row_length(b.tensors, len(order))) for b in buckets}
    keys = instance_keys(chain(*names.values()))
    for replica, bucket in product(topology.local_replicas(task), buckets):
        hint = hints.get(bucket.members[0].shards.ranges[0], "auto")
        own_keys = tuple(keys[name] for name in names[bucket.name])
        _gather(gathered, bucket, own_values, replica, order, group_key, own_keys, hint, joins)
    return gathered


def _copies(member: Member) -> list[tuple[str, int]]:
    """Name of each range's copies, and the rank of its owner."""
    shards = member.shards
    names = (name if member.level == BEFORE_ALL else at_level(name, member.level) for name in shards.ranges)
    return list(zip(names, shards.range_owners, strict=True))


def _of_one_tensor(members: Sequence[Member], joins: Container[Names]) -> Iterator[tuple[Member, ...]]:
    """All members of a bucket if they arrive as one tensor, else one by one."""
    if tuple(member.name for member in members) in joins:
        yield tuple(members)
    else:
        yield from ((member,) for member in members)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tensor:
    """Tensor that the ring delivers or that this task has: one range, or all ranges of joined members.

    Attributes:
        copy: name of the range's copies; None for joined members.
        owner: rank of the range's owner; None for joined members.
    """

    dims: Dims
    block: Block
    members: Names
    copy: str | None = None
    owner: int | None = None

    @property
    def name(self) -> str:
        return self.copy or "/".join(self.members)


def _tensors(
    members: Sequence[Member], task_of: Mapping[int, int], joins: Container[Names]
) -> Iterator[_Tensor]:
    blocks_of = iter(range_blocks(members, task_of))
    for group in _of_one_tensor(members, joins):
        names, layout = tuple(m.name for m in group), group[0].shards.tensor
        blocks = list(chain(*islice(blocks_of, len(group))))
        if names in joins:
            sizes = tuple(size for block in blocks for size in block.sizes)
            tasks = tuple(owner for block in blocks for owner in block.tasks)
            block = replace(blocks[0], sizes=sizes, tasks=tasks)
            yield _Tensor(dims=layout.dims_of(sum(sizes)), block=block, members=names)
            continue
        for (copy, owner), block in zip(_copies(group[0]), blocks, strict=True):
            dims = layout.dims_of(sum(block.sizes))
            yield _Tensor(dims=dims, block=block, members=names, copy=copy, owner=owner)


def _gather_by_ring(
    gathered: GatheredValues,
    buckets: Sequence[ShardBucket],
    own_values: Mapping[Copy, str],
    task: int,
    topology: Topology,
    joins: Container[Names],
) -> None:
    task_of = {r.rank: r.task for r in topology.replicas()}
    host = topology.host_device(task)
    tensors = {b.name: list(_tensors(b.members, task_of, joins)) for b in buckets}

    def exchange(bucket: ShardBucket) -> Exchange[str]:
        own_tensors: list[_Tensor] = []
        received_tensors: list[_Tensor] = []
        for t in tensors[bucket.name]:
            is_own = t.owner is not None and task_of[t.owner] == task
            (own_tensors if is_own else received_tensors).append(t)
        vectors = [
            [received_tensors[k] for k in places]
            for places in in_vectors([t.block for t in received_tensors], bucket.dtype)
        ]
        blocks = [replace(t.block, vector=number) for number, vector in enumerate(vectors) for t in vector]
        transfer = Transfer(
            name=bucket.name,
            kind="gather",
            blocks=(*blocks, *(replace(t.block, vector=None) for t in own_tensors)),
            level=bucket.level,
        )
        own = [
            (own_values[copy, owner], Shape(member.shards.tensor.dims_of(size)))
            for member in bucket.members
            for (copy, owner), size in zip(_copies(member), member.shards.range_sizes, strict=True)
            if task_of[owner] == task
        ]
        values, shapes = [value for value, _ in own], [shape for _, shape in own]
        comes = [[t.dims for t in vector] for vector in vectors]
        received = yield give(transfer, [values], [shapes], bucket.dtype, host, comes=comes)
        return {t.name: value for t, value in zip(chain(*vectors), received, strict=True)}

    waypoint = at_level("sync/values-handed-over", buckets[0].level)
    carried = carry_out(
        [exchange(bucket) for bucket in buckets], [waypoint], host, gathered.nodes, gathered.last_waits
    )
    gathered.last_waits = (carried.last,)
    gathered.done.append(carried.handed_over)
    gathered.transfers += carried.transfers
    for replica, t in product(topology.local_replicas(task), chain(*tensors.values())):
        if t.copy is None:
            gathered.wholes[t.members, replica.rank] = carried.results[t.name]
        elif t.owner != replica.rank:
            own = own_values.get((t.copy, t.owner))
            gathered.values[t.copy, replica.rank] = own or carried.results[t.name]


def _gather(
    gathered: GatheredValues,
    bucket: ShardBucket,
    own_values: Mapping[Copy, str],
    replica: Replica,
    order: tuple[int, ...],
    group_key: int,
    keys: tuple[int, ...],
    hint: str,
    joins: Container[Names],
) -> None:
    """Add one replica's nodes, the values that it receives, and the node that runs after the exchange."""
    rank = replica.rank
    own: list[str] = []
    specs: list[TensorSpec] = []
    range_bounds: list[tuple[tuple[int, int], ...]] = []
    copies: list[list[str]] = []
    for member in bucket.members:
        tensor, ranges = member.shards.tensor, list(zip(_copies(member), member.shards.bounds, strict=True))
        for (copy, owner), (start, stop) in ranges:
            if owner == rank:
                own.append(own_values[copy, rank])
                specs.append(TensorSpec(dtype=bucket.dtype, shape=Shape(tensor.dims_of(stop - start))))
        received_ranges = [(copy, bounds) for (copy, owner), bounds in ranges if owner != rank]
        is_joined = (member.name,) in joins
        range_bounds.append(
            ((0, tensor.length),) if is_joined else tuple(bounds for _, bounds in received_ranges)
        )
        copies.append([] if is_joined else [copy for copy, _ in received_ranges])
    snippet = trace(
        all_gather,
        tuple(specs),
        tensors=bucket.tensors,
        ranges=tuple(range_bounds),
        rank=rank,
        order=order,
        group_key=group_key,
        keys=keys,
        dtype=dtype_number(bucket.dtype),
        hint=hint,
    )
    nodes, (*values, done) = snippet.splice(f"{bucket.name}/replica_{rank}/", own, device=replica.device)
    gathered.nodes += nodes
    gathered.done.append(done.removeprefix("^"))
    received = iter(values)
    for member, names in zip(bucket.members, copies, strict=True):
        if (member.name,) in joins:
            gathered.wholes[(member.name,), rank] = next(received)
        gathered.values |= {(name, rank): next(received) for name in names}
