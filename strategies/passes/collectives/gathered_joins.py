"""Concatenations along the first axis that take all members of a gathered bucket, and nothing else."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from strategies.ir.graph import Node, producer
from strategies.ir.train_graph import TrainGraph
from strategies.ir.variable import Variable
from strategies.passes.collectives.buckets import ShardBucket
from strategies.tf_bridge.attrs import constant_value


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredJoins:
    """Nodes of a step that join the members of one bucket, all in the order in which a gather brings them.

    Attributes:
        joins: names of those that join. reads: names of those that read members for them alone.
    """

    joins: tuple[str, ...]
    reads: tuple[str, ...]


def gathered_joins(
    step: TrainGraph,
    buckets: Collection[ShardBucket],
    copies: Collection[Variable],
    prior: Mapping[str, Sequence[str]],
    task_of: Mapping[int, int],
) -> dict[str, GatheredJoins]:
    """Bucket → what joins its members, where forward takes them only to join them along their first axis.

    Each task may come to its own, for the same bytes travel.

    Args:
        copies: all of the members that this task has.
        prior: handle → nodes that read a copy before its update, where none reads it later.
        task_of: rank → task.
    """
    returned = set(step.returned())
    joining = _joining(step, copies, prior)
    handles: defaultdict[str, list[str]] = defaultdict(list)
    for v in copies:
        handles[v.name].append(v.handle)
    found = {}
    for bucket in buckets:
        arriving = tuple(m.name for m in sorted(bucket.members, key=lambda m: task_of[m.owner]))
        joins = joining.get(arriving, ())
        read = [handle for name in arriving for handle in handles[name]]
        if not joins or not all(handle in prior for handle in read):
            continue
        reads = [name for handle in read for name in prior[handle]]
        if returned.isdisjoint(reads) and _takers(step, reads) <= set(joins):
            found[bucket.name] = GatheredJoins(joins=tuple(joins), reads=tuple(reads))
    return found


def _joining(
    step: TrainGraph, copies: Collection[Variable], prior: Mapping[str, Sequence[str]]
) -> Mapping[tuple[str, ...], Sequence[str]]:
    """Names of copies → nodes outside of updates that concatenate their values, in this order."""
    graph = step.graph
    read_of = {read: v.name for v in copies for read in prior.get(v.handle, ())}
    update = step.update_nodes()
    found: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for node in graph.nodes:
        if node.op == "ConcatV2" and node.name not in update:
            *values, axis = map(producer, node.data_inputs)
            names = tuple(read_of[value] for value in values if _is_read(graph.by_name[value], read_of))
            if len(names) == len(values) and constant_value(graph.by_name[axis]) == 0:
                found[names].append(node.name)
    return found


def _is_read(node: Node, read_of: Mapping[str, str]) -> bool:
    return node.op == "ReadVariableOp" and node.name in read_of


def _takers(step: TrainGraph, reads: Collection[str]) -> set[str]:
    """Nodes that take the value of one of these."""
    return {
        user.name
        for read in reads
        for user in step.graph.consumers.get(read, ())
        if read in map(producer, user.data_inputs)
    }
