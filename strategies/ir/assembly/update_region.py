"""Update regions: they read forward at boundaries only, and write after forward has read."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from strategies.errors import CaptureError
from strategies.ir.access_order import AccessOrder, Events
from strategies.ir.assembly.resources import Access
from strategies.ir.assembly.split import Sides
from strategies.ir.assembly.traced import TracedGradient
from strategies.ir.graph import Graph, Node, output_index, producer, tensor
from strategies.ir.random_ops import draws
from strategies.ir.train_graph import UpdateRegion
from strategies.ir.traversal import ancestors, descendants, levels_of
from strategies.ir.variable import Variable

_Update: TypeAlias = tuple[str, int]
"""Variable, and level of the boundaries that precede its update."""


def detach_update(graph: Graph, parts: Sides) -> Graph:
    """Give the update its own copies of forward nodes that it reads, such as a learning rate.

    Raises:
        CaptureError: the update reads a value of the batch past the boundary, or draws random numbers.
    """
    stop = parts.boundary | parts.forward
    update = ancestors(graph, parts.update_writes(), stop=stop) - stop
    _check_draws(graph, update)
    own_only = parts.boundary.union(parts.uses)
    read = {producer(ref) for name in update for ref in graph.by_name[name].data_inputs}
    shared = (read & parts.forward) - own_only
    if not shared:
        return graph
    cloned = ancestors(graph, shared, control=False, stop=frozenset(parts.uses)) - set(parts.uses)
    reader = next(u.name for u in graph.consumers[min(shared)] if u.name in update)
    _check_cloned(graph, cloned, min(shared), parts, reader)
    prefix = "update/"
    while any(node.name.startswith(prefix) for node in graph.nodes):
        prefix = f"{prefix[:-1]}_/"  # the step has a scope of that name
    renamed = {name: f"{prefix}{name}" for name in cloned}
    state_writes = {w for name, kind in parts.kinds.items() if kind == "state" for w in parts.writes[name]}
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.name in cloned:
            nodes += [node, replace(_reading_clones(node, renamed), name=renamed[node.name])]
        elif node.name in update:
            nodes.append(_reading_clones(node, renamed))
        elif node.name in state_writes:
            nodes.append(_after_clones(node, renamed))
        else:
            nodes.append(node)
    return graph.with_nodes(nodes)


def _check_draws(graph: Graph, names: Iterable[str]) -> None:
    # Replicas with their own copies would draw different numbers and diverge.
    random = min((name for name in names if draws(graph, graph.by_name[name])), default=None)
    if random is not None:
        raise CaptureError(
            f"train step: the update must not draw random numbers, got {random!r}; draw them in the loss, or "
            "derive them from variables with stateless operations",
            node=random,
        )


def _check_cloned(graph: Graph, cloned: Iterable[str], shared: str, parts: Sides, reader: str) -> None:
    written = {write for uses in parts.uses.values() for write in uses.writes}
    for name in cloned:
        node = graph.by_name[name]
        if node.op == "Placeholder" or name in written:
            what = "the batch" if node.op == "Placeholder" else f"what {name!r} does"
            raise CaptureError(
                f"train step: the update must read forward values only through gradients, got {shared!r}, "
                f"which depends on {what}; compute it from gradients or variables",
                node=reader,
            )
    _check_draws(graph, cloned)


def _reading_clones(node: Node, renamed: Mapping[str, str]) -> Node:
    data = []
    for ref in node.data_inputs:
        name = producer(ref)
        data.append(tensor(renamed[name], output_index(ref)) if name in renamed else ref)
    return _after_clones(replace(node, inputs=(*data, *node.waits)), renamed)


def _after_clones(node: Node, renamed: Mapping[str, str]) -> Node:
    waits = [renamed[c] for c in node.control_inputs if c in renamed]
    return node.waiting_for(*waits) if waits else node


def wait_for_gradients(
    graph: Graph, parts: Sides, marks: Sequence[TracedGradient], access: Mapping[str, Access]
) -> Graph:
    """Let assignments wait for a gradient that follows all earlier reads of the variable.

    Neither weight decay nor an assignment in a branch waits for a gradient by itself. Where replicas share a
    variable, its synchronised gradient proves that all have read it.

    Raises:
        CaptureError: no gradient comes between reads of a variable and its next assignment.
    """
    levels = levels_of(graph, parts.boundary)
    order = AccessOrder.of(graph, parts.boundary)
    gradients_before: dict[tuple[str, str], Events] = {}
    for assigned in order.accesses:
        if assigned.writes:
            key = (assigned.handle, assigned.path[0])
            gradients_before[key] = gradients_before.get(key, -1) & assigned.before
    own: dict[tuple[str | None, int], list[str]] = {}
    for mark in marks:
        own.setdefault((mark.variable, levels[mark.values]), []).append(mark.values)
        own.setdefault((None, levels[mark.values]), []).append(mark.values)
    waits: dict[str, dict[str, None]] = {}
    for name, kind in parts.kinds.items():
        if kind == "state":
            continue
        handle = access[name].handle.name
        reads = parts.forward.intersection(parts.uses[handle].reads)
        for write in parts.writes[name]:
            read_at = [levels[c] for c in graph.by_name[write].control_inputs if c in reads]
            level = max(read_at, default=0) + 1
            wanted = own.get((name, level), own.get((None, level), ()) if reads else ())
            if any(order.marks[mark] & gradients_before[handle, write] for mark in wanted):
                continue
            if (reads and not wanted) or (level > 1 and not descendants(graph, [write]).isdisjoint(wanted)):
                raise CaptureError(
                    f"variable {name!r}: between a forward pass that reads it and its next assignment there "
                    f"must be a gradient that depends on the former alone, got none before {write!r}; take a "
                    "gradient for each of them, or compute with the value in place of the variable",
                    node=write,
                )
            waits.setdefault(write, {}).update(dict.fromkeys(f"^{w}" for w in wanted))
    if not waits:
        return graph
    return graph.with_nodes(
        replace(node, inputs=(*node.inputs, *(w for w in waits[node.name] if w not in node.inputs)))
        if node.name in waits
        else node
        for node in graph.nodes
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSide:
    """Regions of all variables, and nodes that several of them need."""

    regions: tuple[UpdateRegion, ...]
    shared: tuple[str, ...]


def update_side(
    graph: Graph,
    variables: Sequence[Variable],
    parts: Sides,
    order: Mapping[str, int],
    levels: Mapping[str, int],
) -> UpdateSide:
    """One region per trainable with its slots, and per shared variable (`iteration`), for each level."""
    targets: dict[_Update, list[str]] = {}
    for v in variables:
        if v.kind != "state":
            for write in parts.writes[v.name]:
                targets.setdefault((v.slot_of or v.name, max(levels[write], 1)), []).append(write)
    stop = parts.boundary | parts.forward | {v.handle for v in variables}
    needed_by = _needed_by(graph, targets, stop)
    own: dict[_Update, list[str]] = {update: [] for update in targets}
    shared = []
    for node in sorted(needed_by, key=order.__getitem__):
        if len(needed_by[node]) > 1:
            shared.append(node)
        else:
            own[needed_by[node][0]].append(node)
    return UpdateSide(
        regions=tuple(
            UpdateRegion(
                variable=name,
                nodes=tuple(own[name, level]),
                targets=tuple(dict.fromkeys(writes)),
                level=level,
            )
            for (name, level), writes in targets.items()
        ),
        shared=tuple(shared),
    )


def _needed_by(
    graph: Graph, targets: Mapping[_Update, Sequence[str]], stop: Container[str]
) -> dict[str, list[_Update]]:
    """Node → first two updates that need it: with a global norm all updates need nearly all nodes."""
    needed_by: dict[str, list[_Update]] = {}
    level_of = {write: update for update, writes in targets.items() for write in writes}
    waiting = [(write, update) for update, writes in targets.items() for write in writes]
    while waiting:
        node, update = waiting.pop()
        assigned = level_of.get(node, update)
        if node in stop or (assigned[0] == update[0] and assigned[1] < update[1]):
            continue
        updates = needed_by.setdefault(node, [])
        if update not in updates and len(updates) < 2:
            updates.append(update)
            waiting += [(producer(ref), update) for ref in graph.by_name[node].inputs]
    return needed_by
