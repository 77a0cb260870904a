"""Parts of a plan's variables, each with a name, a shape and a place, and the bytes at each place."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

from strategies.errors import StrategyError
from strategies.ir.graph import element_bytes, n_elements
from strategies.ir.variable import Cut, part_name
from strategies.plan.schema import PlanNode
from strategies.topology import Topology

_Place = TypeVar("_Place", bound=int)


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
    if not 0 <= partition.axis < len(node.shape):
        raise StrategyError(
            f"plan: variable {node.variable!r}: partition.axis must be an axis of shape {node.shape}, got "
            f"{partition.axis}; keep it whole with `partition: null`"
        )
    cut = Cut(axis=partition.axis, sizes=partition.sizes)
    destinations = _places(node, "destinations", partition.destinations)
    groups = _places(node, "groups", partition.groups)
    owners = _places(node, "owners", partition.owners)
    parts = []
    for k in range(cut.n):
        shape = cut.shape(node.shape, k)
        changes = {
            "variable": part_name(node.variable, k),
            "shape": shape,
            "bytes": element_bytes(node.dtype) * n_elements(shape),
            "partition": None,
            "destination": destinations[k],
            "group": groups[k],
            "owner": owners[k],
        }
        parts.append(node.model_copy(update=changes))
    return tuple(parts)


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


def server_bytes(nodes: Sequence[PlanNode], topology: Topology) -> tuple[int, ...]:
    """Bytes of variables and slots that each task serves."""
    task_bytes = [0] * topology.n_tasks
    for part in (part for node in nodes for part in parts_of(node)):
        if part.destination is not None:
            task_bytes[part.destination] += part.bytes
    return tuple(task_bytes)


def worker_bytes(nodes: Sequence[PlanNode]) -> int:
    """Bytes of variables and slots on the replica with the most."""
    common, alone = 0, Counter[int]()
    for part in (part for node in nodes for part in parts_of(node)):
        if part.owner is not None and (part.synchronizer == "none" or part.gathered):
            alone[part.owner] += part.bytes
        elif part.destination is None:
            common += part.bytes
    return common + max(alone.values(), default=0)
