"""Parts of a plan's variables, each with a name, a shape and a place, and the bytes at each place."""

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TypeVar

from strategies.errors import StrategyError
from strategies.ir.graph import element_bytes, n_elements
from strategies.ir.variable import Cut, part_name
from strategies.plan.schema import Partition, PlanNode
from strategies.plan.sharding import ShardedTensor
from strategies.topology import Topology

_Place = TypeVar("_Place", bound=int)
_Value = TypeVar("_Value")


def cuts_of(nodes: Iterable[PlanNode]) -> dict[str, Cut]:
    """Ranges of each partitioned variable, by name."""
    return {
        n.variable: Cut(axis=n.partition.axis, sizes=n.partition.sizes)
        for n in nodes
        if n.partition is not None
    }


def parts_of(node: PlanNode) -> tuple[PlanNode, ...]:
    """A plan node for each part; the node itself if the variable is whole.

    Raises:
        StrategyError: a part lacks a place, or the variable has no such axis.
    """
    partition = node.partition
    if partition is None:
        return (node,)
    _require_axis(node, partition)
    destinations = _places(node, "destinations", partition.destinations)
    groups = _places(node, "groups", partition.groups)
    owners = _places(node, "owners", partition.owners)
    return tuple(
        _part(node, partition, size).model_copy(
            update={
                "variable": part_name(node.variable, k),
                "destination": destinations[k],
                "group": groups[k],
                "owner": owners[k],
            }
        )
        for k, size in enumerate(partition.sizes)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlikeParts:
    """Parts of a variable with one length and one bucket, or a whole variable.

    Attributes:
        node: plan node of one of them, with the name of the variable.
        name: name of the part if it is alone, else of the variable.
        n: number of parts.
        destinations: task that serves each part; empty without servers.
        owners: rank of the replica that owns each part; empty without owners.
    """

    node: PlanNode
    name: str
    n: int
    destinations: tuple[int, ...]
    owners: tuple[int, ...]


def alike_parts(node: PlanNode) -> tuple[AlikeParts, ...]:
    """Parts of a variable, those that are alike together.

    Raises:
        StrategyError: a part lacks a place, or the variable has no such axis.
    """
    partition = node.partition
    if partition is None:
        destinations = () if node.destination is None else (node.destination,)
        owners = () if node.owner is None else (node.owner,)
        return (AlikeParts(node=node, name=node.variable, n=1, destinations=destinations, owners=owners),)
    _require_axis(node, partition)
    for field in ("destinations", "groups", "owners"):
        _places(node, field, getattr(partition, field))

    def chosen(places: Sequence[int] | None, numbers: Sequence[int]) -> tuple[int, ...]:
        return () if places is None else tuple(places[k] for k in numbers)

    return tuple(
        AlikeParts(
            node=_part(node, partition, size).model_copy(update={"group": group}),
            name=part_name(node.variable, numbers[0]) if len(numbers) == 1 else node.variable,
            n=len(numbers),
            destinations=chosen(partition.destinations, numbers),
            owners=chosen(partition.owners, numbers),
        )
        for (size, group), numbers in _numbers(partition.sizes, partition.groups).items()
    )


# Cached: a variable's slots have the same parts.
@lru_cache(maxsize=64)
def _numbers(
    sizes: tuple[int, ...], groups: tuple[int, ...] | None
) -> dict[tuple[int, int | None], list[int]]:
    """Length and bucket → numbers of the parts that have both."""
    numbers: dict[tuple[int, int | None], list[int]] = {}
    for k, size in enumerate(sizes):
        numbers.setdefault((size, None if groups is None else groups[k]), []).append(k)
    return numbers


def _require_axis(node: PlanNode, partition: Partition) -> None:
    if not 0 <= partition.axis < len(node.shape):
        raise StrategyError(
            f"plan: variable {node.variable!r}: partition.axis must be an axis of shape {node.shape}, got "
            f"{partition.axis}; keep it whole with `partition: null`"
        )


def _part(node: PlanNode, partition: Partition, size: int) -> PlanNode:
    """Plan node of a part of this length, without a place."""
    shape = (*node.shape[: partition.axis], size, *node.shape[partition.axis + 1 :])
    n_bytes = element_bytes(node.dtype) * n_elements(shape)
    changes = {"shape": shape, "bytes": n_bytes, "partition": None, "destination": None, "owner": None}
    return node.model_copy(update=changes)


def _places(node: PlanNode, field: str, places: Sequence[_Place] | None) -> Sequence[_Place | None]:
    assert node.partition is not None
    n = len(node.partition.sizes)
    if places is None:
        return [None] * n
    if len(places) != n:
        raise StrategyError(
            f"plan: variable {node.variable!r}: partition.{field} needs one for each of {n} sizes, got "
            f"{len(places)}; add or drop some"
        )
    return places


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedParts:
    """Consecutive parts of a variable, or of a range of it, each updated by a single replica.

    Attributes:
        variable: name of the variable, or of the range.
        tensor: its parts.
        ranges: names of the variables that a task has for the parts, in order.
        range_sizes: length of each of these.
    """

    variable: str
    tensor: ShardedTensor
    ranges: tuple[str, ...]
    range_sizes: tuple[int, ...]

    @property
    def range_owners(self) -> tuple[int, ...]:
        """Rank of the owner of each range's first part: of the whole range, if it is this task's."""
        starts = accumulate(self.tensor.sizes[:-1], initial=0)
        owner_at = dict(zip(starts, self.tensor.owners, strict=True))
        return tuple(owner_at[start] for start in accumulate(self.range_sizes[:-1], initial=0))

    @property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """Start and stop of each range along the axis."""
        return tuple(pairwise(accumulate(self.range_sizes, initial=0)))

    def of(self, rank: int, values: Sequence[_Value]) -> list[_Value]:
        """Choose the values of the ranges that a replica of this task owns.

        Args:
            values: one value for each range.
        """
        return [value for value, owner in zip(values, self.range_owners, strict=True) if owner == rank]


def sharded_tensor(node: PlanNode) -> ShardedTensor | None:
    """Parts of a variable with their owners, a whole variable as a single part; None without owners."""
    partition = node.partition
    if partition is not None:
        axis, sizes, owners = partition.axis, partition.sizes, partition.owners
    else:
        axis, sizes = 0, node.shape[:1] or (1,)
        owners = None if node.owner is None else (node.owner,)
    return None if owners is None else ShardedTensor(dims=node.shape, axis=axis, sizes=sizes, owners=owners)


def joins_parts(nodes: Iterable[PlanNode]) -> bool:
    """True if a task has neighbouring parts of other owners as one; not if buckets divide a variable."""
    partitions = (node.partition for node in nodes if node.partition is not None)
    return all(len({*(p.groups or ())}) <= 1 for p in partitions if p.owners is not None)


def joined_for(node: PlanNode, ranks: Container[int]) -> PlanNode:
    """Return the node with neighbouring parts that none of these replicas updates as one part.

    The owner of such a range is that of its first part: it stands for all others.
    """
    partition = node.partition
    if partition is None or partition.owners is None:
        return node
    firsts = [
        k
        for k, owner in enumerate(partition.owners)
        if k == 0 or owner in ranks or partition.owners[k - 1] in ranks
    ]
    if len(firsts) == len(partition.sizes):
        return node
    ends = [*firsts[1:], len(partition.sizes)]
    changes = {
        "sizes": tuple(sum(partition.sizes[k:end]) for k, end in zip(firsts, ends, strict=True)),
        "groups": partition.groups and tuple(partition.groups[k] for k in firsts),
        "owners": tuple(partition.owners[k] for k in firsts),
    }
    return node.model_copy(update={"partition": partition.model_copy(update=changes)})


def shards_of(node: PlanNode, joined: PlanNode) -> OwnedParts | None:
    """Parts of a variable with owners; None without owners.

    Args:
        joined: the same node as a task has it, see `joined_for`.
    """
    tensor = sharded_tensor(node)
    if tensor is None:
        return None
    partition = joined.partition
    sizes = tensor.sizes if partition is None else partition.sizes
    names = [node.variable if partition is None else part_name(node.variable, k) for k in range(len(sizes))]
    return OwnedParts(variable=node.variable, tensor=tensor, ranges=tuple(names), range_sizes=sizes)


def server_bytes(nodes: Sequence[PlanNode], topology: Topology) -> tuple[int, ...]:
    """Bytes of variables and slots that each task serves."""
    task_bytes = [0] * topology.n_tasks
    for parts in (parts for node in nodes for parts in alike_parts(node)):
        for task in parts.destinations:
            task_bytes[task] += parts.node.bytes
    return tuple(task_bytes)


def worker_bytes(nodes: Sequence[PlanNode]) -> int:
    """Bytes of variables and slots on the replica with the most."""
    common, alone = 0, Counter[int]()
    for parts in (parts for node in nodes for parts in alike_parts(node)):
        node = parts.node
        if parts.owners and (node.synchronizer == "none" or node.gathered):
            for owner in parts.owners:
                alone[owner] += node.bytes
        elif not parts.destinations:
            common += node.bytes * parts.n
    return common + max(alone.values(), default=0)
