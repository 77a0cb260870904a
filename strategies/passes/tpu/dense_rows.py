"""Sparse gradients made dense, for programs of known shapes: every row has a gradient, mostly zeros.

An update of rows then gets all of them, in order. The result is the same if rows without a gradient are
updated as if it were zero, as in Keras 3's optimizers; TensorFlow's kernels for rows leave them alone.
"""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.errors import UnsupportedError
from strategies.ir.graph import DType, Graph, Node, identity, producer
from strategies.ir.ops import SCATTERS, SPARSE_UPDATES, op_set
from strategies.ir.train_graph import Boundary, TrainGraph
from strategies.ir.traversal import descendants, prune, topological_order
from strategies.numerics.combine import all_ids, dense_rows
from strategies.passes.task_plan import TaskPlan
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import Topology

_LOOKUPS = frozenset({"ResourceGather", "ResourceGatherNd"})
# Ops whose result is zero if the first input is, if any is, or if all are.
_ZERO_OF_FIRST = op_set("""
    Abs Cast CheckNumerics ClipByValue Div DivNoNan Identity Neg RealDiv Sign Sqrt Square Tanh
    UnsortedSegmentSum
""")
_ZERO_OF_ANY = frozenset({"Maximum", "Minimum", "Mul", "MulNoNan"})
_ZERO_OF_ALL = frozenset({"Add", "AddN", "AddV2", "Sub"})


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseRows:
    """Make sparse gradients dense, and give updates all rows."""

    name: ClassVar[str] = "tpu-dense-rows"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:  # noqa: ARG002 - the form of every pass
        sparse = [b for b in graph.boundaries if b.indices is not None]
        if not sparse:
            return graph
        changed: dict[str, Node] = {}
        added: list[Node] = []
        for b in sparse:
            _check_update(graph, b)
            dense = _Dense.of(graph.graph, b)
            changed |= {node.name: node for node in dense.replaced()}
            added += dense.added
        nodes = (*(changed.get(node.name, node) for node in graph.graph.nodes), *added)
        step = replace(
            graph,
            graph=graph.graph.with_nodes(nodes),
            boundaries=tuple(_dense(b) if b.indices is not None else b for b in graph.boundaries),
        )
        return replace(step, graph=prune(step.graph, step.roots()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dense:
    """Replacement of one boundary: `crossing` for its values, `every_id` for its ids."""

    values: Node
    rows: Node
    ids: Node
    crossing: str
    every_id: str
    added: tuple[Node, ...]

    @classmethod
    def of(cls, graph: Graph, b: Boundary) -> "_Dense":
        by_name = graph.by_name
        assert b.indices is not None
        assert b.index_dtype is not None
        assert b.shape.dims is not None
        n_rows = b.shape.dims[0]
        # Capture sums rows of equal ids right after the boundary.
        ids = next(node for node in graph.consumers[b.indices] if node.op == "Unique")
        rows = next(node for node in graph.consumers[b.values] if node.op == "UnsortedSegmentSum")
        refs = by_name[b.values].inputs[0], by_name[b.indices].inputs[0]
        snippet = trace(
            dense_rows,
            (TensorSpec(dtype=b.dtype), TensorSpec(dtype=b.index_dtype)),
            n_rows=n_rows,
            shape=b.shape.dims,
        )
        nodes, (crossing,) = snippet.splice(f"{b.values}/dense/", refs)
        every = trace(all_ids, (), n_rows=n_rows, dtype=str(b.index_dtype))
        more, (every_id,) = every.splice(f"{b.values}/every_id/", [])
        return cls(
            values=by_name[b.values],
            rows=rows,
            ids=ids,
            crossing=crossing,
            every_id=every_id,
            added=(*nodes, *more),
        )

    def replaced(self) -> Iterator[Node]:
        yield self.values.changed(inputs=(self.crossing, *self.values.inputs[1:]))
        yield _identity(self.rows, self.values.name, self.values.attrs["T"])
        yield _identity(self.ids, self.every_id, self.ids.attrs["T"])


def _identity(node: Node, ref: str, dtype: object) -> Node:
    assert isinstance(dtype, DType)
    return identity(node.name, ref, dtype, waits=node.control_inputs)


def _dense(b: Boundary) -> Boundary:
    return replace(b, indices=None, index_dtype=None)


def _check_update(graph: TrainGraph, b: Boundary) -> None:
    by_name = graph.graph.by_name
    of_rows = [
        by_name[name]
        for region in graph.regions
        for name in region.nodes
        if region.variable == b.variable and by_name[name].op in SPARSE_UPDATES
    ]
    for node in (*of_rows, *_moving_scatters(graph, b)):
        raise UnsupportedError(
            f"a step for TPU cores: the update of {b.variable!r} must do with dense gradients, which "
            f"programs of known shapes have, got {node.op}, which leaves rows without a gradient as they "
            "are; compare it by all-reduce or a parameter server instead"
        )


def _moving_scatters(graph: TrainGraph, b: Boundary) -> Iterator[Node]:
    assert b.indices is not None
    by_name, update = graph.graph.by_name, graph.update_nodes()
    lookups = [name for name in update if by_name[name].op in _LOOKUPS]
    by_lookups = descendants(graph.graph, lookups, control=False)
    by_ids = descendants(graph.graph, [b.indices], control=False)
    scatters = [
        by_name[name]
        for name in sorted(update & by_ids & by_lookups)
        if by_name[name].op in SCATTERS
        and producer(by_name[name].inputs[1]) in by_ids
        and producer(by_name[name].inputs[2]) in by_lookups
    ]
    if not scatters:
        return
    zeros = _zeros(graph.graph, b.values)
    yield from (node for node in scatters if not _adds_nothing(by_name, node, zeros))


def _zeros(graph: Graph, rows: str) -> set[str]:
    """Nodes that are zero in every row in which this gradient's rows are zero."""
    zeros = {rows}
    made_of_rows = [graph.by_name[name] for name in descendants(graph, [rows], control=False)]
    for node in topological_order(made_of_rows):
        of_zeros = [producer(ref) in zeros for ref in node.data_inputs]
        if (
            (node.op in _ZERO_OF_FIRST and of_zeros[0])
            or (node.op in _ZERO_OF_ANY and any(of_zeros))
            or (node.op in _ZERO_OF_ALL and all(of_zeros))
        ):
            zeros.add(node.name)
    return zeros


def _adds_nothing(by_name: Mapping[str, Node], scatter: Node, zeros: Container[str]) -> bool:
    """True if a write does not change a row in which these nodes are zero."""
    handle, ids, value = scatter.data_inputs[:3]
    if scatter.op in ("ResourceScatterAdd", "ResourceScatterSub"):
        return producer(value) in zeros
    total = by_name[producer(value)]
    if scatter.op != "ResourceScatterUpdate" or total.op not in ("Add", "AddV2", "Sub"):
        return False
    terms = [by_name[producer(ref)] for ref in total.data_inputs]
    own = [term.op in _LOOKUPS and term.data_inputs[:2] == (handle, ids) for term in terms]
    return (own[0] and terms[1].name in zeros) or (own[1] and terms[0].name in zeros and total.op != "Sub")
