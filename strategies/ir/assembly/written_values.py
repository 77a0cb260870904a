"""Forward reads after an assignment in the same step use the assigned value as a tensor.

SpectralNormalization divides a kernel before it uses it, metrics read their totals, a target network follows
before it is asked. With the value as a tensor, the assignment can join the update or cross a boundary.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from strategies.errors import CaptureError
from strategies.ir.assembly.resources import Access, redirected
from strategies.ir.assembly.split import Sides
from strategies.ir.graph import DType, Graph, Node, free_name, identity, node_slug
from strategies.ir.ops import ADDITIONS, UNCHANGED
from strategies.ir.train_graph import Boundary
from strategies.ir.traversal import ancestors, called_functions, descendants
from strategies.ir.variable import Variable

_SUM_OF = {"AssignAddVariableOp": "AddV2", "AssignSubVariableOp": "Sub"}


@dataclass(slots=True)
class WrittenValues:
    """Values after assignments, and the nodes that make them.

    Attributes:
        values: read → tensor that replaces it.
        lookups: row lookup → same lookup on the written value.
        waits: read → write that it waited for.
        before: write → nodes to insert before it.
    """

    graph: Graph
    values: dict[str, str] = field(default_factory=dict)
    lookups: dict[str, Node] = field(default_factory=dict)
    waits: dict[str, str] = field(default_factory=dict)
    before: dict[str, list[Node]] = field(default_factory=dict)

    def take(
        self, variable: str, dtype: DType, writes: Mapping[str, bool], reads: Iterable[str]
    ) -> dict[str, str]:
        """Replace reads that follow writes by the written value.

        Args:
            writes: assignment → True if reads may use its value; in order.
        Returns:
            Read that no longer waits → write that it waited for.
        Raises:
            CaptureError: a loop, branch or another user of the variable's handle follows such a write.
        """
        order = {name: i for i, name in enumerate(writes)}
        last_waits: dict[str, str] = {}
        for name in reads:
            node = self.graph.by_name[name]
            last = max((c for c in node.control_inputs if c in order), key=order.__getitem__, default=None)
            if last is None or not writes[last]:
                continue
            if node.op == "ReadVariableOp":
                self.values[name] = self._after(last, dtype, writes)
            elif node.op == "ResourceGather" and not node.attrs.get("batch_dims"):
                inputs = (self._after(last, dtype, writes), *node.inputs[1:])
                attrs = {"Tparams": dtype, "Tindices": node.attrs["Tindices"]}
                self.lookups[name] = replace(node, op="Gather", inputs=inputs, attrs=attrs)
            elif node.op not in UNCHANGED:
                raise CaptureError(
                    f"variable {variable!r}: what the forward pass assigns must be read at the top of the "
                    f"step, got {node.op} {name!r}; assign a value, and use that value",
                    node=name,
                )
            last_waits[name] = self.waits[name] = last
        return last_waits

    def _after(self, write_name: str, dtype: DType, writes: Mapping[str, bool]) -> str:
        write = self.graph.by_name[write_name]
        if write.op not in ADDITIONS:
            return write.inputs[1]
        sum_name = f"{write.name}/value"
        own = self.before.setdefault(write.name, [])
        if all(node.name != sum_name for node in own):
            earlier = list(writes)[: list(writes).index(write_name)]
            if earlier and writes[earlier[-1]]:
                start = self._after(earlier[-1], dtype, writes)
            else:
                start = f"{write.name}/before"
                inputs = (write.inputs[0], *write.waits)
                own.append(Node(name=start, op="ReadVariableOp", inputs=inputs, attrs={"dtype": dtype}))
            inputs = (start, write.inputs[1])
            own.append(Node(name=sum_name, op=_SUM_OF[write.op], inputs=inputs, attrs={"T": dtype}))
        return sum_name

    def ending(self) -> dict[str, str]:
        return {name: self._end(ref) for name, ref in self.values.items()}

    def _end(self, ref: str) -> str:
        while ref in self.values:
            ref = self.values[ref]
        return ref

    def inserted(self, nodes: Iterable[Node]) -> Iterator[Node]:
        for node in nodes:
            added = self.before.get(node.name, ())
            yield from added
            reads = [a.name for a in added if a.op == "ReadVariableOp"]
            after_reads = node.waiting_for(*reads) if reads else node
            yield self.lookups.get(node.name, after_reads)


def waiting_elsewhere(node: Node, instead: Mapping[str, str]) -> Node:
    """Copy of a node with its waits replaced."""
    if instead.keys().isdisjoint(node.control_inputs):
        return node
    waits = dict.fromkeys(f"^{instead.get(c, c)}" for c in node.control_inputs)
    return replace(node, inputs=(*node.data_inputs, *waits))


def is_assignment(node: Node) -> bool:
    """True if a node only assigns one variable or adds to it."""
    return node.op == "AssignVariableOp" or node.op in ADDITIONS


def calls_after_writes(graph: Graph, parts: Sides) -> set[str]:
    """Calls of the forward pass that read a variable after an assignment of the step."""
    calls = set()
    for uses in parts.uses.values():
        writes = set(uses.writes)
        for name in parts.forward.intersection(uses.reads):
            node = graph.by_name[name]
            if called_functions(node.attrs) and not writes.isdisjoint(node.control_inputs):
                calls.add(name)
    return calls


def with_values_read(graph: Graph, parts: Sides, access: Mapping[str, Access]) -> Graph:
    """Let the forward pass read assigned values instead of assigned variables.

    Raises:
        CaptureError: such an assignment is in a loop or branch, or its value is not read by a plain read.
    """
    from_gradients = descendants(graph, parts.boundary, control=False)
    written = WrittenValues(graph)
    for name, kind in parts.kinds.items():
        own = {w: w not in from_gradients for w in parts.writes[name]}
        if kind == "state" or not any(own.values()):
            continue
        handle = access[name].handle
        dtype = handle.attrs["dtype"]
        assert isinstance(dtype, DType)
        reads = [r for r in parts.uses[handle.name].reads if r in parts.forward]
        for write in written.take(name, dtype, own, reads).values():
            node = graph.by_name[write]
            if not is_assignment(node):
                raise CaptureError(
                    f"variable {name!r}: what the forward pass assigns and reads must be assigned at the top "
                    f"of the step, got a write by {node.op} {write!r}; return the new value from the loop or "
                    "branch, then assign it",
                    node=write,
                )
    if not written.waits:
        return graph
    assigned = set(written.waits.values())
    nodes = [
        node.without_waits(assigned | set(written.values))
        if node.name in parts.forward
        else waiting_elsewhere(node, written.waits)
        for node in written.inserted(graph.nodes)
        if node.name not in written.values
    ]
    return graph.with_nodes(redirected(nodes, written.ending()))


_PARTIAL_WRITES = ("ResourceScatter", "ResourceStridedSlice")
"""Prefixes of the types of operations that write some elements of a variable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedState:
    """Graph with boundaries of forward state, and assignments that no longer run."""

    graph: Graph
    boundaries: tuple[Boundary, ...]
    dropped: frozenset[str]


@dataclass(slots=True)
class _Edits:
    """Changes of a graph that boundaries need."""

    added: dict[str, tuple[Node, Node]]
    written: WrittenValues
    dropped: set[str]


def merge_state(graph: Graph, variables: Sequence[Variable], parts: Sides) -> MergedState:
    """Put a boundary before each assignment of forward state; the last assignment of a step wins.

    Forward reads what its own shard assigned; updates read the merged value.

    Raises:
        CaptureError: state is written where its replicas cannot be merged.
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
    removed = edits.dropped | set(edits.written.values)
    nodes = [
        n
        for node in edits.written.inserted(graph.nodes)
        if node.name not in removed
        for n in _crossing(node, edits.added)
    ]
    # The merge runs after every replica's forward pass, so nothing in the pass may wait for it.
    merged = removed | set(edits.added)
    remaining = [
        node.without_waits(merged if node.name in parts.forward and node.name not in merged else removed)
        for node in redirected(nodes, edits.written.ending())
    ]
    return MergedState(
        graph=graph.with_nodes(remaining), boundaries=tuple(boundaries), dropped=frozenset(edits.dropped)
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
        # Names of variables may differ only in characters that node names cannot have.
        used_names = {marker.name for marker, _ in edits.added.values()}
        name = free_name(f"state_boundary/{node_slug(v.name)}{suffix}", used_names)
        marker = identity(name, write.inputs[1], v.dtype)
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
    if node.name not in added:
        return (node,)
    marker, write = added[node.name]
    return marker, replace(write, inputs=(*write.data_inputs, *node.waits))


def _check_top_level(v: Variable, writes: Sequence[Node]) -> None:
    if v.seed_word is not None:
        return  # each replica has its own random state, wherever it advances
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
