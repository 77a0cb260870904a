"""Values that workers give each other by a transport of their own, a bucket at a time."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TypeAlias

from strategies.ir.graph import Node, Shape, n_elements
from strategies.ir.train_graph import Transfer
from strategies.ir.traversal import at_level
from strategies.passes.collectives.buckets import ShardBucket
from strategies.passes.collectives.ring.transfers import all_given, give, take
from strategies.topology import Topology

Copy: TypeAlias = tuple[str, int | None]
"""A value of a variable, by the name of its exchange, and the replica that has a copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """What one task adds to its step.

    Attributes:
        values: copy of a variable → its value, which another replica has.
        wholes: bucket → the tensors of all its members in one, joined along their first axis.
        done: nodes after which this task has given its share. last: the node that waits last.
    """

    nodes: tuple[Node, ...]
    values: Mapping[Copy, str]
    wholes: Mapping[str, str]
    done: tuple[str, ...]
    transfers: tuple[Transfer, ...]
    last: str


def transport_gather(
    buckets: Sequence[ShardBucket],
    own_values: Mapping[Copy, str],
    task: int,
    topology: Topology,
    after: Sequence[str] = (),
    contiguous: AbstractSet[str] = frozenset(),
) -> Gathered:
    """Nodes that give what this task's replicas own, and take what others have.

    All is given before the first wait, which holds a thread that updates may need.

    Args:
        buckets: of one level.
        own_values: copy of a variable → its value, of those that local replicas own.
        after: the last wait of the level before.
        contiguous: buckets whose members come as one tensor.
    """
    if not buckets:
        return Gathered(nodes=(), values={}, wholes={}, done=(), transfers=(), last="")
    host, task_of = topology.host_device(task), {r.rank: r.task for r in topology.replicas()}
    shares = {bucket.name: bucket.by_task(task_of, topology.n_tasks) for bucket in buckets}
    transfers = [
        Transfer(
            name=bucket.name,
            kind="gather",
            shares=tuple(sum(n_elements(m.dims) for m in share) for share in shares[bucket.name]),
            level=bucket.level,
            contiguous=bucket.name in contiguous,
        )
        for bucket in buckets
    ]
    given: list[Node] = []
    for bucket, transfer in zip(buckets, transfers, strict=True):
        own = shares[bucket.name][task]
        values = [own_values[m.name, m.owner] for m in own]
        given += give(transfer, [values], [[Shape(m.dims) for m in own]], bucket.dtype, host)
    handed_over = all_given(at_level("sync/values-handed-over", buckets[0].level) + "/", given, host, after)
    nodes = [*given, *handed_over]
    previous = handed_over[-1].name
    received: dict[str, str] = {}
    wholes: dict[str, str] = {}
    for bucket, transfer in zip(buckets, transfers, strict=True):
        others = [share for k, share in enumerate(shares[bucket.name]) if k != task and share]
        dims = [[_whole(bucket)]] if transfer.contiguous else [[m.dims for m in share] for share in others]
        if not dims:
            continue
        taking, tensors, previous = take(transfer, dims, bucket.dtype, host, previous)
        nodes += taking
        if transfer.contiguous:
            wholes[bucket.name] = tensors[0]
        else:
            received |= dict(zip((m.name for share in others for m in share), tensors, strict=True))
    return Gathered(
        nodes=tuple(nodes),
        values={
            (m.name, replica.rank): received.get(m.name) or own_values[m.name, m.owner]
            for replica in topology.local_replicas(task)
            for bucket in buckets
            for m in bucket.members
            if bucket.name not in wholes and m.owner != replica.rank
        },
        wholes=wholes,
        done=(handed_over[-1].name,),
        transfers=tuple(transfers),
        last=previous,
    )


def _whole(bucket: ShardBucket) -> tuple[int, ...]:
    """The shape of all members, joined along their first axis."""
    return (sum(m.dims[0] for m in bucket.members), *bucket.members[0].dims[1:])
