"""Merge rules of forward state, and seeds in random state."""

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import replace

from strategies.ir.assembly.split import Sides
from strategies.ir.assembly.traced import TracedVariable
from strategies.ir.graph import DType, Graph, Node, producer
from strategies.ir.ops import ADDITIONS, FORWARDING_OPS, UNCHANGED
from strategies.ir.random_ops import SHAPES, generator_inputs, seed_inputs
from strategies.ir.resource_uses import Uses
from strategies.ir.traversal import ancestors, descendants
from strategies.ir.variable import Rule

_INTEGERS = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"})
_SEEDS = frozenset({"int32", "uint32", "int64", "uint64"})
_SUMS = frozenset({"Add", "AddV2"})
_QUOTIENTS = frozenset({"RealDiv", "Div", "DivNoNan"})


def assignments_as_additions(
    graph: Graph, parts: Sides, reads: Mapping[str, str], *, skip: Collection[str], scalars: Collection[str]
) -> Graph:
    """Turn `assign(v + x)` of forward state into the equivalent `assign_add(x)`, as in Keras's metrics.

    Args:
        reads: ReadVariableOp → handle of its variable.
        skip: variables to leave unchanged. scalars: variables with a single value.
    """
    changed: dict[str, Node] = {}
    inserted: dict[str, tuple[Node, ...]] = {}
    sums: set[str] = set()
    for name, kind in parts.kinds.items():
        if kind != "state" or name in skip:
            continue
        writes = [graph.by_name[write] for write in parts.writes[name]]
        before = dict(zip(parts.writes[name][1:], parts.writes[name], strict=False))
        additions = {
            w.name: addition for w in writes if (addition := _addition(graph, w, reads, before.get(w.name)))
        }
        if any(w.op not in ADDITIONS and w.name not in additions for w in writes):
            continue  # an addition to a value just assigned is part of that assignment
        sums |= {producer(graph.by_name[write].inputs[1]) for write in additions}
        if name not in scalars:
            inserted |= {write: _as_large(addition) for write, addition in additions.items()}
            additions = {
                write: replace(node, inputs=(node.inputs[0], inserted[write][-1].name, *node.inputs[2:]))
                for write, node in additions.items()
            }
        changed |= additions
    if not changed:
        return graph
    idle = {read for total in sums for read in _read_for_it_alone(graph, total, reads)}
    return graph.with_nodes(
        kept_node.without_waits(idle)
        for node in graph.nodes
        for kept_node in (*inserted.get(node.name, ()), changed.get(node.name, node))
    )


def _as_large(addition: Node) -> tuple[Node, Node]:
    handle, amount = addition.inputs[:2]
    kind = DType("int32")
    shape = Node(
        name=f"{addition.name}/shape", op="VariableShape", inputs=(handle,), attrs={"out_type": kind}
    )
    attrs = {"T": addition.attrs["dtype"], "Tidx": kind}
    whole = Node(name=f"{addition.name}/amount", op="BroadcastTo", inputs=(amount, shape.name), attrs=attrs)
    return shape, whole


def _read_for_it_alone(graph: Graph, total: str, reads: Mapping[str, str]) -> Iterator[str]:
    """Reads that only this sum uses; writes would wait for them needlessly."""
    for read in map(producer, graph.by_name[total].data_inputs):
        wanted_by = {u.name for u in graph.consumers[read] if read in map(producer, u.data_inputs)}
        if read in reads and wanted_by == {total}:
            yield read


def _addition(graph: Graph, write: Node, reads: Mapping[str, str], last: str | None) -> Node | None:
    if write.op != "AssignVariableOp":
        return None
    total = graph.by_name[producer(write.inputs[1])]
    if total.op not in _SUMS:
        return None
    handle = write.inputs[0]
    own = [reads.get(producer(ref)) == handle for ref in total.data_inputs]
    if own.count(True) != 1:
        return None
    read = graph.by_name[producer(total.data_inputs[own.index(True)])]
    if last is not None and last not in read.control_inputs:
        return None
    amount = total.data_inputs[own.index(False)]
    return replace(
        write,
        op="AssignAddVariableOp",
        inputs=(handle, amount, *write.inputs[2:]),
        attrs={"dtype": write.attrs["dtype"]},
    )


def seed_words(
    graph: Graph, variables: Sequence[TracedVariable], parts: Sides, handles: Mapping[str, str]
) -> dict[str, int]:
    """Random state → index of its seed word."""
    known: dict[str, frozenset[int]] = {}
    seed_producers = [producer(n.data_inputs[k]) for n in graph.nodes for k in seed_inputs(graph, n, known)]
    shapes = {node.name for node in graph.nodes if node.op in SHAPES}
    seeding = ancestors(graph, seed_producers, stop=shapes, control=False)
    words = {}
    for v in variables:
        if parts.kinds[v.name] == "state":
            word = _seed_word(graph, handles[v.name], parts.uses[handles[v.name]], v, seeding, known)
            if word is not None:
                words[v.name] = word
    return words


def _seed_word(
    graph: Graph,
    handle: str,
    uses: Uses,
    v: TracedVariable,
    seeding: Container[str],
    known: dict[str, frozenset[int]],
) -> int | None:
    """Index of the seed word: last in a generator's state, first in Keras's."""
    dims = v.shape.dims
    if v.dtype not in _SEEDS or dims is None or dims not in ((2,), (3,)):
        return None
    touched = [graph.by_name[n] for n in (*uses.reads, *uses.writes) if n in graph.by_name]
    if any(_takes(graph, node, handle, generator_inputs(graph, node)) for node in touched):
        return dims[0] - 1
    drawn = (
        n.name in seeding
        if n.op == "ReadVariableOp"
        else _takes(graph, n, handle, seed_inputs(graph, n, known))
        for n in touched
    )
    return 0 if any(drawn) else None


def _takes(graph: Graph, node: Node, handle: str, positions: Collection[int]) -> bool:
    for position in positions:
        name = producer(node.data_inputs[position])
        while name != handle and graph.by_name[name].op in FORWARDING_OPS:
            name = producer(graph.by_name[name].inputs[0])
        if name == handle:
            return True
    return False


def state_rules(
    graph: Graph,
    variables: Sequence[TracedVariable],
    parts: Sides,
    handles: Mapping[str, str],
    seeds: Mapping[str, int],
    batch: Sequence[str],
) -> dict[str, Rule]:
    """Forward state → its merge rule.

    Additions are a sum, unless they move the variable towards something (mean), or do not depend on the batch
    and are either integers or read by gradients or updates (first-replica, such as a hand-written step
    count). A float that divides a sum is a sum as well: metrics divide by it. Counts of update values are
    first-replica.
    """
    from_batch = descendants(graph, batch, control=False)
    decides = ancestors(graph, [*parts.boundary, *parts.update_writes()], control=False)
    rules: dict[str, Rule] = {}
    for v in variables:
        if parts.kinds[v.name] == "state":
            writes = [graph.by_name[w] for w in parts.writes[v.name]]
            reads = parts.uses[handles[v.name]].reads
            # Row lookups, and branches and calls that use it, read it too.
            read_here = [name for name in reads if graph.by_name[name].op not in UNCHANGED]
            is_read = not decides.isdisjoint(read_here)
            rule = _rule(graph, v, writes, read_here, from_batch, is_read=is_read)
            rules[v.name] = "per-replica" if v.name in seeds else rule
    rules |= _counts_of_updates(graph, variables, parts, rules, from_batch)
    return rules | _counts_of_means(graph, variables, parts, handles, rules)


def _counts_of_updates(
    graph: Graph,
    variables: Sequence[TracedVariable],
    parts: Sides,
    rules: Mapping[str, Rule],
    from_batch: set[str],
) -> dict[str, Rule]:
    """Rules of counts beside totals to which updates add, in one name scope, as in Keras's `Mean`."""
    scopes: dict[str, list[TracedVariable]] = {}
    for v in variables:
        scopes.setdefault(v.name.rpartition("/")[0], []).append(v)
    # Variables without a scope are unrelated.
    scopes.pop("", None)
    counts: dict[str, Rule] = {}
    for members in scopes.values():
        kept_by_update = any(parts.kinds[v.name] == "slot" and not v.optimizer_owned for v in members)
        sums = [v.name for v in members if rules.get(v.name) == "sum"]
        writes = (graph.by_name[write] for name in sums for write in parts.writes[name])
        if kept_by_update and from_batch.isdisjoint(producer(write.inputs[1]) for write in writes):
            counts |= dict.fromkeys(sums, "first-replica")
    return counts


def _counts_of_means(
    graph: Graph,
    variables: Sequence[TracedVariable],
    parts: Sides,
    handles: Mapping[str, str],
    rules: Mapping[str, Rule],
) -> dict[str, Rule]:
    """Rules of divisors of sums: they are sums as well, although their additions never change."""
    read_sums = {
        read for name, rule in rules.items() if rule == "sum" for read in parts.uses[handles[name]].reads
    }
    counts: dict[str, Rule] = {}
    for v in variables:
        if rules.get(v.name) != "first-replica" or v.dtype in _INTEGERS:
            continue
        below = descendants(graph, parts.uses[handles[v.name]].reads, control=False)
        quotients = (
            node for node in graph.nodes if node.op in _QUOTIENTS and producer(node.inputs[1]) in below
        )
        numerators = [producer(node.inputs[0]) for node in quotients]
        if not read_sums.isdisjoint(ancestors(graph, numerators, stop=parts.boundary, control=False)):
            counts[v.name] = "sum"
    return counts


def _rule(
    graph: Graph,
    v: TracedVariable,
    writes: Sequence[Node],
    read_here: Sequence[str],
    from_batch: set[str],
    *,
    is_read: bool,
) -> Rule:
    if v.constant or v.dtype in ("bool", "string"):
        return "per-replica"
    integer = v.dtype in _INTEGERS
    if not writes or any(w.op not in ADDITIONS for w in writes):
        return "first-replica" if integer else "mean"
    amounts = [producer(write.inputs[1]) for write in writes]
    of_batch = not from_batch.isdisjoint(amounts)
    if integer:
        return "sum" if of_batch else "first-replica"
    # A read for a move feeds little else, while an amount depends on the whole forward pass.
    if not descendants(graph, read_here, control=False).isdisjoint(amounts):
        return "mean"
    return "sum" if of_batch or not is_read else "first-replica"
