"""Variables that a gather brings in one piece, where a step would join what it brings of their parts."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from strategies.ir.graph import Graph, Node, producer
from strategies.ir.variable import Variable
from strategies.passes.collectives.buckets import ShardBucket
from strategies.tf_bridge.constants import constant_value


@dataclass(frozen=True, slots=True, kw_only=True)
class Joins:
    """Nodes of a step that join the parts of one bucket, all in the order in which a gather brings them.

    Attributes:
        nodes: names of those that join. reads: names of those that read parts of others for them alone.
    """

    nodes: tuple[str, ...]
    reads: tuple[str, ...]


def joins(
    graph: Graph,
    buckets: Collection[ShardBucket],
    taken: Mapping[str, Sequence[str]],
    copies: Collection[Variable],
    task_of: Mapping[int, int],
) -> dict[str, Joins]:
    """Bucket → what joins its members, of buckets that nothing takes but to join them along their first axis.

    Args:
        taken: handle → nodes that read a copy whose value others have.
        copies: all copies of the members that this task has.
        task_of: rank → task.
    """
    joining = list(_joining(graph, copies))
    found = {}
    for bucket in buckets:
        arriving = tuple(m.name for m in sorted(bucket.members, key=lambda m: task_of[m.owner]))
        nodes = [name for name, members in joining if members == arriving]
        reads = [n for v in copies if v.name in arriving and v.handle in taken for n in taken[v.handle]]
        users = {
            u.name
            for read in reads
            for u in graph.consumers.get(read, ())
            if read in map(producer, u.data_inputs)
        }
        if nodes and users <= set(nodes):
            found[bucket.name] = Joins(nodes=tuple(nodes), reads=tuple(reads))
    return found


def _joining(graph: Graph, copies: Collection[Variable]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Nodes that join values of copies along the first axis, and the variables that these are of."""
    of_handle = {v.handle: v.name for v in copies}
    for node in graph.nodes:
        if node.op != "ConcatV2":
            continue
        *values, axis = (graph.by_name[producer(ref)] for ref in node.data_inputs)
        names = [_read(value, of_handle) for value in values]
        if all(names) and constant_value(axis) == 0:
            yield node.name, tuple(name for name in names if name is not None)


def _read(node: Node, of_handle: Mapping[str, str]) -> str | None:
    return of_handle.get(node.data_inputs[0]) if node.op == "ReadVariableOp" else None
