"""The one edit that synchronisation makes: feed boundaries with other values, from nodes that it adds."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace

from strategies.ir.graph import Graph, Node
from strategies.ir.train_graph import Boundary, Contribution, TrainGraph
from strategies.passes.replicate.step_copies import replica_prefix


def contribute(
    step: TrainGraph,
    combined: Mapping[str, Contribution],
    added: Iterable[Node],
    *,
    dropped: Container[str] = (),
    **changes: object,
) -> TrainGraph:
    """Return the step with new nodes, and with these contributions at its boundaries.

    Args:
        combined: `Boundary.values` → its new, only contribution; other boundaries stay unchanged.
        dropped: `Boundary.values` of the boundaries to remove.
        changes: other fields of the step to replace.
    """
    added = tuple(added)
    if not (combined or added or changes):
        return step
    inputs: dict[str, str] = {}
    for boundary in step.boundaries:
        contribution = combined.get(boundary.values)
        if contribution is not None:
            inputs[boundary.values] = contribution.values
            if boundary.indices is not None and contribution.indices is not None:
                inputs[boundary.indices] = contribution.indices
    boundaries = tuple(
        replace(b, contributions=(combined[b.values],)) if b.values in combined else b
        for b in step.boundaries
        if b.values not in dropped
    )
    return replace(step, graph=fed_with(step.graph, inputs, added), boundaries=boundaries, **changes)  # type: ignore[arg-type]


def total(rank: int, values: str, indices: str | None = None) -> Contribution:
    """Contribution that stands for the complete sum over all replicas of all tasks."""
    return Contribution(rank=rank, values=values, indices=indices, weight=1.0, total=True)


def pending(step: TrainGraph, ranks: Container[int | None]) -> list[Boundary]:
    """Boundaries of these replicas whose contributions are not summed over all replicas yet."""
    return [
        b for b in step.boundaries if b.rank in ranks and b.contributions and not b.contributions[0].total
    ]


def fed_with(graph: Graph, inputs: Mapping[str, str], added: Iterable[Node]) -> Graph:
    """Return the graph with new nodes, and with these identities reading other tensors.

    Args:
        inputs: identity → tensor reference that it reads.
    """
    nodes = [
        replace(node, inputs=(inputs[node.name], *node.inputs[1:])) if node.name in inputs else node
        for node in graph.nodes
    ]
    return graph.with_nodes([*nodes, *added])


def captured_name(boundary: Boundary) -> str:
    """Name of the boundary's identity in the captured step, the same on every replica of every task."""
    return (
        boundary.values
        if boundary.rank is None
        else boundary.values.removeprefix(replica_prefix(boundary.rank))
    )


def sync_prefix(boundary: Boundary) -> str:
    """Prefix of the names of a boundary's synchronisation."""
    return f"sync/{captured_name(boundary)}"
