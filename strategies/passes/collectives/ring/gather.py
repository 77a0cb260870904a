"""Values that workers give each other by a transport of their own, a bucket at a time."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TypeAlias

from strategies.ir.assembly.levels import at_level
from strategies.ir.graph import Node, Shape
from strategies.ir.sizes import n_elements
from strategies.ir.transfer import Transfer
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
    in_one_piece: AbstractSet[str] = frozenset(),
) -> Gathered:
    """Nodes that give what this task's replicas own, and take what others have.

    All is given before the first wait, which holds a thread that updates may need.

    Args:
        buckets: of one level.
        own_values: copy of a variable → its value, of those that local replicas own.
        after: the last wait of the level before.
        in_one_piece: buckets whose members come so.
    """
    task_of = {replica.rank: replica.task for replica in topology.replicas()}
    host = topology.host_device(task)
    given: list[Node] = []
    transfers = []
    for bucket in buckets:
        shares = bucket.by_task(task_of, topology.n_tasks)
        lengths = tuple(sum(n_elements(m.dims) for m in share) for share in shares)
        transfer = Transfer(
            name=bucket.name,
            kind="gather",
            shares=lengths,
            level=bucket.level,
            in_one_piece=bucket.name in in_one_piece,
        )
        own = shares[task]
        given += give(
            transfer,
            [[own_values[m.name, m.owner] for m in own]],
            [[Shape(m.dims) for m in own]],
            bucket.dtype,
            host,
        )
        transfers.append(transfer)
    if not transfers:
        return Gathered(nodes=(), values={}, wholes={}, done=(), transfers=(), last="")
    handed_over = all_given(at_level("sync/values-handed-over", buckets[0].level) + "/", given, host, after)
    nodes = [*given, *handed_over]
    previous = handed_over[-1].name
    received: dict[str, str] = {}
    wholes: dict[str, str] = {}
    for bucket, transfer in zip(buckets, transfers, strict=True):
        if transfer.in_one_piece:
            dims = bucket.members[0].dims
            length = sum(m.dims[0] for m in bucket.members)
            taking, (wholes[bucket.name],), previous = take(
                transfer, [[(length, *dims[1:])]], bucket.dtype, host, previous
            )
            nodes += taking
            continue
        others = [s for k, s in enumerate(bucket.by_task(task_of, topology.n_tasks)) if k != task and s]
        if others:
            shapes = [[m.dims for m in share] for share in others]
            taking, tensors, previous = take(transfer, shapes, bucket.dtype, host, previous)
            nodes += taking
            received |= dict(zip((m.name for share in others for m in share), tensors, strict=True))
    values: dict[Copy, str] = {
        (m.name, replica.rank): received.get(m.name) or own_values[m.name, m.owner]
        for replica in topology.local_replicas(task)
        for bucket in buckets
        if bucket.name not in in_one_piece
        for m in bucket.members
        if m.owner != replica.rank
    }
    return Gathered(
        nodes=tuple(nodes),
        values=values,
        wholes=wholes,
        done=(handed_over[-1].name,),
        transfers=tuple(transfers),
        last=previous,
    )
