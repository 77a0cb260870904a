"""All-gather of values: their owners give them to all other replicas, by collectives or a ring."""

import itertools
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from strategies.ir.graph import Node, Shape
from strategies.ir.train_graph import TrainGraph, Transfer
from strategies.ir.traversal import at_level
from strategies.numerics.collectives import all_gather
from strategies.passes.collectives.buckets import Member, ShardBucket, shard_buckets
from strategies.passes.collectives.members import instance_keys
from strategies.passes.collectives.ring import Copy, transport_gather
from strategies.tf_bridge.attrs import dtype_number
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import Replica, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredValues:
    """What one task adds to its step.

    Attributes:
        values: copy of a variable → its value, which another replica has.
        wholes: bucket → its members joined along their first axis, of contiguous ones.
        done: nodes that run after the exchanges, of the workers' own transport once all is given.
        last_waits: the node that waits last for the workers' own transport, if any does.
    """

    nodes: tuple[Node, ...]
    values: Mapping[Copy, str]
    wholes: Mapping[str, str]
    done: tuple[str, ...]
    last_waits: tuple[str, ...]
    transfers: tuple[Transfer, ...]


def gather_buckets(
    step: TrainGraph, owners: Mapping[str, int], buckets: Sequence[Sequence[str]]
) -> tuple[ShardBucket, ...]:
    """Buckets of the new values that these owners give, one value for each update of a variable.

    Args:
        owners: variable → rank of the replica that alone updates it.
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
    """Nodes by which local replicas give the values that they own, and take those of others.

    Args:
        buckets: of TensorFlow's collectives. carried: of the workers' own transport.
        own_values: copy of a variable → its value, of those that local replicas own.
        hints: variable → TensorFlow's implementation for its bucket, `auto` unless given.
        group_key: of all replicas, and of no other call for the same step.
        contiguous: names of those carried whose members come as one tensor.
    """
    nodes: list[Node] = []
    values: dict[Copy, str] = {}
    wholes: dict[str, str] = {}
    done: list[str] = []
    transfers: list[Transfer] = []
    last: list[str] = []
    for level in sorted({bucket.level for bucket in carried}):
        of_level = [bucket for bucket in carried if bucket.level == level]
        gathered = transport_gather(of_level, own_values, task, topology, last, contiguous)
        last = [gathered.last]
        nodes += gathered.nodes
        values |= gathered.values
        wholes |= gathered.wholes
        done += gathered.done
        transfers += gathered.transfers
    keys = instance_keys(name for bucket in buckets for name in bucket.key_names)
    for replica, bucket in itertools.product(topology.local_replicas(task), buckets):
        hint = hints.get(bucket.members[0].variable, "auto")
        added, taken, after = _gather(
            bucket, own_values, replica, topology.collective_order(), group_key, keys, hint
        )
        nodes += added
        values |= taken
        done.append(after)
    return GatheredValues(
        nodes=tuple(nodes),
        values=values,
        wholes=wholes,
        done=tuple(done),
        last_waits=tuple(last),
        transfers=tuple(transfers),
    )


def _gather(
    bucket: ShardBucket,
    own_values: Mapping[Copy, str],
    replica: Replica,
    order: tuple[int, ...],
    group_key: int,
    keys: Mapping[str, int],
    hint: str,
) -> tuple[Sequence[Node], dict[Copy, str], str]:
    """One replica's nodes, what it takes from others, and the node that runs after the exchange."""
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
