"""Rows of sparse gradients with equal ids, summed before an update reads them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.ir.graph import Node, producer
from strategies.ir.train_graph import Boundary, TrainGraph, UpdateRegion
from strategies.numerics.combine import merge_rows
from strategies.passes.task_plan import TaskPlan
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import Topology


@dataclass(frozen=True, kw_only=True, slots=True)
class MergeRows:
    """Sum rows of equal ids directly after the boundary, so that transports may sum them before it."""

    name: ClassVar[str] = "merge-rows"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:  # noqa: ARG002 - the form of every pass
        merged = {
            b.values: _merged(b)
            for b in graph.boundaries
            if b.indices is not None and b.variable in self.plan.merged_rows
        }
        if not merged:
            return graph
        # Nodes that read a row or an id now read the merged one.
        reads = {old: new for merged_rows in merged.values() for old, new in merged_rows.reads.items()}
        after = {merged_rows.last: merged_rows.nodes for merged_rows in _at_last(graph, merged)}
        nodes: list[Node] = []
        for node in graph.graph.nodes:
            nodes += (_reading(node, reads), *after.get(node.name, ()))
        regions, common = _owned(graph, merged.values())
        return replace(
            graph,
            graph=graph.graph.with_nodes(nodes),
            boundaries=tuple(replace(b, merged=True) if b.values in merged else b for b in graph.boundaries),
            regions=regions,
            shared_update=(*common, *graph.shared_update),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Merged:
    """Nodes that merge the rows that cross one boundary.

    Attributes:
        reads: tensor that crosses → merged tensor. last: node after which they are inserted in the graph.
    """

    nodes: tuple[Node, ...]
    reads: Mapping[str, str]
    last: str


def _merged(b: Boundary) -> _Merged:
    assert b.indices is not None
    assert b.index_dtype is not None
    specs = (TensorSpec(dtype=b.dtype), TensorSpec(dtype=b.index_dtype))
    nodes, (rows, ids) = trace(merge_rows, specs).splice(f"{b.values}/merged/", [b.values, b.indices])
    return _Merged(nodes=nodes, reads={b.values: rows, b.indices: ids}, last=b.indices)


def _at_last(graph: TrainGraph, merged: Mapping[str, _Merged]) -> list[_Merged]:
    place = {node.name: i for i, node in enumerate(graph.graph.nodes)}
    return [
        replace(merged_rows, last=max(merged_rows.reads, key=place.__getitem__))
        for merged_rows in merged.values()
    ]


def _reading(node: Node, reads: Mapping[str, str]) -> Node:
    if reads.keys().isdisjoint(node.inputs):
        return node
    return node.changed(inputs=tuple(reads.get(ref, ref) for ref in node.inputs))


def _owned(graph: TrainGraph, merged: Iterable[_Merged]) -> tuple[tuple[UpdateRegion, ...], tuple[str, ...]]:
    """Regions, each with the merges that it alone reads, and the nodes of merges that several read."""
    consumers, shared = graph.graph.consumers, set(graph.shared_update)
    region_of = {name: i for i, region in enumerate(graph.regions) for name in region.nodes}
    own: defaultdict[int, list[str]] = defaultdict(list)
    common: list[str] = []
    for merged_rows in merged:
        names = [node.name for node in merged_rows.nodes]
        readers = {user.name for ref in merged_rows.reads for user in consumers.get(producer(ref), ())}
        regions = {region_of[name] for name in readers if name in region_of}
        if readers & shared or len(regions) > 1:
            common += names
        elif regions:
            own[regions.pop()] += names
    with_merges = (
        replace(r, nodes=(*own[i], *r.nodes)) if i in own else r for i, r in enumerate(graph.regions)
    )
    return tuple(with_merges), tuple(common)
