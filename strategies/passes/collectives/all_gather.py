"""All-gather: owners send values to all other replicas, by TensorFlow's collectives or the ring."""

import itertools
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TypeAlias

from strategies.ir.graph import Node, Shape, n_elements
from strategies.ir.train_graph import TrainGraph, Transfer
from strategies.ir.traversal import at_level
from strategies.numerics.collectives import all_gather
from strategies.passes.collectives.buckets import Member, ShardBucket, shard_buckets
from strategies.passes.collectives.members import instance_keys
from strategies.passes.collectives.tcp_ring import Exchange, carry_out, give
from strategies.tf_bridge.attrs import dtype_number
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import Replica, Topology

Copy: TypeAlias = tuple[str, int | None]
"""Name of a value's exchange, and rank of the replica that has the copy."""


@dataclass(slots=True, kw_only=True)
class GatheredValues:
    """Additions of one task to its step.

    Attributes:
        values: copy of a variable → tensor of its value, which another replica owns.
        wholes: bucket → tensor of its members, joined along their first axis; contiguous buckets only.
        done: nodes that run after the exchanges; for the ring, once everything has been handed over.
        last_waits: last node that waits for the ring, None without a ring.
    """

    nodes: list[Node] = field(default_factory=list)
    values: dict[Copy, str] = field(default_factory=dict)
    wholes: dict[str, str] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    last_waits: tuple[str, ...] = ()
    transfers: list[Transfer] = field(default_factory=list)


def gather_buckets(
    step: TrainGraph, owners: Mapping[str, int], buckets: Sequence[Sequence[str]]
) -> tuple[ShardBucket, ...]:
    """Make the buckets of new values that these owners send, one value for each update of a variable.

    Args:
        owners: variable → rank of the single replica that updates it.
        buckets: names of the variables of each bucket.
    """
    levels: dict[str, dict[int, None]] = {}
    for region in step.regions:
        levels.setdefault(region.variable, {})[region.level] = None
    members = [
        Member(
            name=at_level(v.name, level),
            variable=v.name,
            dtype=v.dtype,
            dims=v.shape.dims or (),
            owner=owners[v.name],
            level=level,
        )
        for v in step.variables
        if v.name in owners
        for level in levels.get(v.name, ())
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
    contiguous: AbstractSet[str] = frozenset(),
) -> GatheredValues:
    """Make the nodes by which local replicas send the values that they own and receive those of others.

    Args:
        buckets: buckets of TensorFlow's collectives. carried: buckets of the workers' own transport.
        own_values: copy of a variable → tensor of its value, for copies that local replicas own.
        hints: variable → TensorFlow's implementation for its bucket, by default `auto`.
        group_key: key of the group of all replicas, not used by another call for the same step.
        contiguous: names of the `carried` buckets whose members arrive as one tensor.
    """
    gathered = GatheredValues()
    for level in sorted({bucket.level for bucket in carried}):
        of_level = [bucket for bucket in carried if bucket.level == level]
        _gather_by_ring(gathered, of_level, own_values, task, topology, contiguous)
    keys = instance_keys(name for bucket in buckets for name in bucket.key_names)
    for replica, bucket in itertools.product(topology.local_replicas(task), buckets):
        hint = hints.get(bucket.members[0].variable, "auto")
        added, inputs, after = _gather(
            bucket, own_values, replica, topology.collective_order(), group_key, keys, hint
        )
        gathered.nodes += added
        gathered.values |= inputs
        gathered.done.append(after)
    return gathered


def _gather_by_ring(
    gathered: GatheredValues,
    buckets: Sequence[ShardBucket],
    own_values: Mapping[Copy, str],
    task: int,
    topology: Topology,
    contiguous: AbstractSet[str],
) -> None:
    task_of = {r.rank: r.task for r in topology.replicas()}
    host = topology.host_device(task)

    def exchange(bucket: ShardBucket) -> Exchange[str]:
        shares = bucket.by_task(task_of, topology.n_tasks)
        joined = bucket.name in contiguous
        transfer = Transfer(
            name=bucket.name,
            kind="gather",
            shares=tuple(sum(n_elements(m.dims) for m in share) for share in shares),
            level=bucket.level,
            contiguous=joined,
        )
        own, others = shares[task], [share for k, share in enumerate(shares) if k != task and share]
        comes = [[_whole(bucket)]] if joined else [[m.dims for m in share] for share in others]
        values = [own_values[m.name, m.owner] for m in own]
        tensors = yield give(
            transfer, [values], [[Shape(m.dims) for m in own]], bucket.dtype, host, comes=comes
        )
        names = [bucket.name] if joined else [m.name for share in others for m in share]
        return dict(zip(names, tensors, strict=True))

    waypoint = at_level("sync/values-handed-over", buckets[0].level)
    carried = carry_out(
        [exchange(bucket) for bucket in buckets], [waypoint], host, gathered.nodes, gathered.last_waits
    )
    gathered.last_waits = (carried.last,)
    gathered.done.append(carried.handed_over)
    gathered.transfers += carried.transfers
    gathered.wholes |= {b.name: carried.results[b.name] for b in buckets if b.name in contiguous}
    gathered.values |= {
        (m.name, replica.rank): carried.results.get(m.name) or own_values[m.name, m.owner]
        for replica in topology.local_replicas(task)
        for bucket in buckets
        for m in bucket.members
        if bucket.name not in contiguous and m.owner != replica.rank
    }


def _whole(bucket: ShardBucket) -> tuple[int, ...]:
    return (sum(m.dims[0] for m in bucket.members), *bucket.members[0].dims[1:])


def _gather(
    bucket: ShardBucket,
    own_values: Mapping[Copy, str],
    replica: Replica,
    order: tuple[int, ...],
    group_key: int,
    keys: Mapping[str, int],
    hint: str,
) -> tuple[Sequence[Node], dict[Copy, str], str]:
    """One replica's nodes, the values that it receives, and the node that runs after the exchange."""
    rank = replica.rank
    own = [m for m in bucket.members if m.owner == rank]
    snippet = trace(
        all_gather,
        tuple(TensorSpec(dtype=bucket.dtype, shape=Shape(m.dims)) for m in own),
        shapes=tuple(m.dims for m in bucket.members),
        owners=bucket.owners,
        rank=rank,
        order=order,
        group_key=group_key,
        keys=tuple(keys[name] for name in bucket.key_names),
        dtype=dtype_number(bucket.dtype),
        hint=hint,
    )
    nodes, (*values, done) = snippet.splice(
        f"{bucket.name}/replica_{rank}/", [own_values[m.name, rank] for m in own], device=replica.device
    )
    others = ((m.name, rank) for m in bucket.members if m.owner != rank)
    return nodes, dict(zip(others, values, strict=True)), done.removeprefix("^")
