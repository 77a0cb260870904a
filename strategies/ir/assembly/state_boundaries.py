"""Boundaries of forward state: where new values cross to all shards, and assignments that these replace."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from strategies.errors import CaptureError
from strategies.ir.assembly.forward_update_split import Parts
from strategies.ir.assembly.resources import redirected
from strategies.ir.assembly.written_values import ADDITIONS, WrittenValues, is_assignment, without_waits
from strategies.ir.boundary import Boundary
from strategies.ir.graph import DType, Graph, Node
from strategies.ir.names import node_slug
from strategies.ir.traversal import ancestors
from strategies.ir.variable import Variable

_PARTIAL_WRITES = ("ResourceScatter", "ResourceStridedSlice")
"""Begin the types of operations that write some elements of a variable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedState:
    """The graph with forward state's boundaries; `dropped` are assignments that no longer run."""

    graph: Graph
    boundaries: tuple[Boundary, ...]
    dropped: frozenset[str]


@dataclass(slots=True)
class _Edits:
    """What making boundaries changes in a graph."""

    added: dict[str, tuple[Node, Node]]
    written: WrittenValues
    dropped: set[str]


def merge_state(graph: Graph, variables: Sequence[Variable], parts: Parts) -> MergedState:
    """An identity before each forward state's assignment; earlier assignments of a step give way to the last.

    What the forward pass reads after an assignment is what its own shard has assigned; updates read what all
    shards have come to.

    Raises:
        CaptureError: when state is written where its replicas cannot be merged.
    """
    edits = _Edits(added={}, written=WrittenValues(graph), dropped=set())
    update = ancestors(graph, parts.update_writes(), stop=parts.boundary | parts.forward)
    boundaries: list[Boundary] = []
    for v in variables:
        if v.kind == "state" and parts.writes[v.name]:
            writes = [graph.by_name[w] for w in parts.writes[v.name]]
            _check_top_level(v, writes)
            if v.rule != "per-replica":
                reads = [name for name in parts.uses[v.handle].reads if name not in update]
                edits.written.take(v.name, v.dtype, dict.fromkeys(parts.writes[v.name], True), reads)
                boundaries += _cross(v, writes, edits)
                _check_updates_read_last(graph, v, edits.dropped, update)
    if not edits.added:
        return MergedState(graph=graph, boundaries=(), dropped=frozenset())
    gone = edits.dropped | set(edits.written.values)
    nodes = [
        n
        for node in edits.written.inserted(graph.nodes)
        if node.name not in gone
        for n in _crossing(node, edits.added)
    ]
    # The merge comes after every replica's forward pass, so nothing there may wait for it.
    merged = gone | set(edits.added)
    kept = [
        without_waits(node, merged if node.name in parts.forward and node.name not in merged else gone)
        for node in redirected(nodes, edits.written.ending())
    ]
    return MergedState(
        graph=graph.with_nodes(kept), boundaries=tuple(boundaries), dropped=frozenset(edits.dropped)
    )


def _cross(v: Variable, writes: Sequence[Node], edits: _Edits) -> Iterator[Boundary]:
    if all(w.op in ADDITIONS for w in writes):
        crossing = writes
    else:
        _check_assignments(v, writes)
        edits.dropped |= {w.name for w in writes[:-1]}
        crossing = writes[-1:]
    for k, write in enumerate(crossing):
        suffix = f"__{k}" if k else ""
        name = f"state_boundary/{node_slug(v.name)}{suffix}"
        # Names of variables may differ in letters that no node's name has.
        while any(name == marker.name for marker, _ in edits.added.values()):
            name += "_"
        marker = Node(
            name=name,
            op="Identity",
            inputs=(write.inputs[1],),
            attrs={"T": v.dtype},
        )
        edits.added[write.name] = (
            marker,
            replace(write, inputs=(write.inputs[0], marker.name, *write.inputs[2:])),
        )
        yield Boundary(
            variable=v.name,
            role="state",
            rule=v.rule or "mean",
            dtype=DType(v.dtype),
            shape=v.shape,
            values=marker.name,
        )


def _crossing(node: Node, added: Mapping[str, tuple[Node, Node]]) -> tuple[Node, ...]:
    """The boundary of an assignment and the assignment of what crosses it; any other node alone."""
    if node.name not in added:
        return (node,)
    marker, write = added[node.name]
    return marker, replace(write, inputs=(*write.data_inputs, *(f"^{c}" for c in node.control_inputs)))


def _check_top_level(v: Variable, writes: Sequence[Node]) -> None:
    if v.seed_word is not None:
        return  # a replica's random state is its own, wherever it moves on
    for write in writes:
        if is_assignment(write):
            continue
        rule, way_out = (
            "at the top of the step",
            "return the new value from the loop or branch, then assign it",
        )
        if write.op.startswith(_PARTIAL_WRITES):
            rule = "as a whole"
            way_out = "make the new value by tf.tensor_scatter_nd_update, _add or _sub, then assign it"
        raise CaptureError(
            f"variable {v.name!r}: forward state must be assigned {rule}, got a write by {write.op} "
            f"{write.name!r}; {way_out}",
            node=write.name,
        )


def _check_assignments(v: Variable, writes: Sequence[Node]) -> None:
    mixed = next((w for w in writes if w.op != "AssignVariableOp"), None)
    if mixed is not None:
        raise CaptureError(
            f"variable {v.name!r}: forward state must be either assigned or added to in a step, got both, an "
            f"addition by {mixed.name!r}; assign the sum",
            node=mixed.name,
        )


def _check_updates_read_last(
    graph: Graph, v: Variable, dropped: AbstractSet[str], update: Collection[str]
) -> None:
    between = next(
        (
            user.name
            for user in graph.consumers.get(v.handle, ())
            if user.op == "ReadVariableOp"
            and not dropped.isdisjoint(user.control_inputs)
            and user.name in update
        ),
        None,
    )
    if between is not None:
        raise CaptureError(
            f"variable {v.name!r}: an update reads forward state before its first or after its last "
            f"assignment in a step, got {between!r} between two; assign it once",
            node=between,
        )
