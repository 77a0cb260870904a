"""Forward state: by which rule new values from several replicas become one, and where they cross."""

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from strategies.errors import CaptureError
from strategies.ir.assembly.forward_update_split import Parts
from strategies.ir.assembly.resources import redirected
from strategies.ir.assembly.traced import TracedVariable
from strategies.ir.assembly.written_values import ADDITIONS, WrittenValues, is_assignment, without_waits
from strategies.ir.boundary import Boundary
from strategies.ir.graph import DType, Graph, Node, producer
from strategies.ir.names import node_slug
from strategies.ir.replicas.seeds import draws_statelessly, moves_generator
from strategies.ir.resource_uses import Uses
from strategies.ir.traversal import ancestors, descendants
from strategies.ir.variable import Rule, Variable

_INTEGERS = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"})
_SEEDS = frozenset({"int32", "uint32", "int64", "uint64"})
_SUMS = frozenset({"Add", "AddV2"})


def additions_as_such(graph: Graph, parts: Parts, reads: Mapping[str, str], skip: frozenset[str]) -> Graph:
    """Forward state that is assigned itself plus something is added to instead, as Keras's metrics mean it.

    Args:
        reads: ReadVariableOp → its variable's handle.
        skip: variables that are left alone.
    """
    changed: dict[str, Node] = {}
    sums: set[str] = set()
    for name, kind in parts.kinds.items():
        if kind != "state" or name in skip:
            continue
        writes = [graph.by_name[write] for write in parts.writes[name]]
        additions = {w.name: addition for w in writes if (addition := _addition(graph, w, reads))}
        if any(w.op not in ADDITIONS and w.name not in additions for w in writes):
            continue  # what is added to a value that was just assigned is assigned with it
        changed |= additions
        sums |= {producer(graph.by_name[write].inputs[1]) for write in additions}
    if not changed:
        return graph
    idle = {read for total in sums for read in _read_for_it_alone(graph, total, reads)}
    return graph.with_nodes(without_waits(changed.get(node.name, node), idle) for node in graph.nodes)


def _read_for_it_alone(graph: Graph, total: str, reads: Mapping[str, str]) -> Iterator[str]:
    """Reads that only this sum wants; writes wait for them, which would keep them for nothing."""
    for read in map(producer, graph.by_name[total].data_inputs):
        wanted_by = {u.name for u in graph.consumers[read] if read in map(producer, u.data_inputs)}
        if read in reads and wanted_by == {total}:
            yield read


def _addition(graph: Graph, write: Node, reads: Mapping[str, str]) -> Node | None:
    if write.op != "AssignVariableOp":
        return None
    total = graph.by_name[producer(write.inputs[1])]
    if total.op not in _SUMS:
        return None
    handle = write.inputs[0]
    own = [reads.get(producer(ref)) == handle for ref in total.data_inputs]
    if own.count(True) != 1:
        return None
    amount = total.data_inputs[own.index(False)]
    return replace(
        write,
        op="AssignAddVariableOp",
        inputs=(handle, amount, *write.inputs[2:]),
        attrs={"dtype": write.attrs["dtype"]},
    )


def seed_words(
    graph: Graph, variables: Sequence[TracedVariable], parts: Parts, handles: Mapping[str, str]
) -> dict[str, int]:
    """Random state → which word of it is its seed."""
    drawing = [node.name for node in graph.nodes if draws_statelessly(graph, node)]
    seeding = ancestors(graph, drawing, control=False)
    words = {}
    for v in variables:
        if parts.kinds[v.name] == "state":
            word = _seed_word(graph, parts.uses[handles[v.name]], v, seeding)
            if word is not None:
                words[v.name] = word
    return words


def _seed_word(graph: Graph, uses: Uses, v: TracedVariable, seeding: Container[str]) -> int | None:
    """A generator's key comes last, Keras's seed first.

    Args:
        seeding: nodes that make random numbers of a seed that they are given, and what they are given.
    """
    dims = v.shape.dims
    if v.dtype not in _SEEDS or dims is None or dims not in ((2,), (3,)):
        return None
    touched = [graph.by_name[n] for n in (*uses.reads, *uses.writes) if n in graph.by_name]
    if any(moves_generator(graph, node) for node in touched):
        return dims[0] - 1
    drawn = (n.op == "ReadVariableOp" or draws_statelessly(graph, n) for n in touched if n.name in seeding)
    return 0 if any(drawn) else None


def state_rules(
    graph: Graph,
    variables: Sequence[TracedVariable],
    parts: Parts,
    seeds: Mapping[str, int],
    batch: Sequence[str],
) -> dict[str, Rule]:
    """Forward state → its rule.

    What is added up is a sum, unless what is added moves the variable towards something (then a mean), or
    is a whole number that is the same whatever the batch (then every replica counts the same step).
    """
    from_batch = descendants(graph, batch, control=False)
    rules: dict[str, Rule] = {}
    for v in variables:
        if parts.kinds[v.name] == "state":
            writes = [graph.by_name[w] for w in parts.writes[v.name]]
            rules[v.name] = "per-replica" if v.name in seeds else _rule(graph, v, writes, from_batch)
    return rules


def _rule(graph: Graph, v: TracedVariable, writes: Sequence[Node], from_batch: set[str]) -> Rule:
    if v.constant or v.dtype in ("bool", "string"):
        return "per-replica"
    integer = v.dtype in _INTEGERS
    if not writes or any(w.op not in ADDITIONS for w in writes):
        return "first-replica" if integer else "mean"
    amounts = [producer(w.inputs[1]) for w in writes]
    if integer:
        return "sum" if from_batch.intersection(amounts) else "first-replica"
    read_here = [r.name for r in graph.consumers.get(writes[0].inputs[0], ()) if r.op == "ReadVariableOp"]
    # What is read in order to be moved leads to little else, while an amount comes of the whole forward pass.
    return "sum" if descendants(graph, read_here, control=False).isdisjoint(amounts) else "mean"


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
        marker = Node(
            name=f"state_boundary/{node_slug(v.name)}{suffix}",
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
        if not is_assignment(write):
            raise CaptureError(
                f"variable {v.name!r}: forward state must be assigned at the top of the step, got a write by "
                f"{write.op} {write.name!r}; return the new value from the loop or branch, then assign it",
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
