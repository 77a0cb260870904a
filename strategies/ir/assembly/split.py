"""Forward and update sides of a step, the kind of each variable, and owners of slots."""

import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TypeAlias

from strategies.ir.assembly.resources import Access
from strategies.ir.assembly.traced import TracedGradient, TracedStep, TracedVariable
from strategies.ir.graph import Graph, producer
from strategies.ir.ops import REDUCTIONS, UNCHANGED
from strategies.ir.resource_uses import Uses, resource_uses
from strategies.ir.traversal import ancestors, descendants, topological_order
from strategies.ir.variable import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The two sides of a step.

    Attributes:
        boundary: identity nodes that gradients pass.
        after: nodes computed from gradients or from updated variables.
        forward: nodes that gradients, results and forward state need, without updates in between.
        writes: variable → the step's own assignments of it, in graph order.
        uses: handle node → readers and writers of the variable.
    """

    boundary: frozenset[str]
    after: frozenset[str]
    forward: frozenset[str]
    kinds: Mapping[str, Kind]
    writes: Mapping[str, tuple[str, ...]]
    uses: Mapping[str, Uses]

    def update_writes(self) -> list[str]:
        return [w for name, kind in self.kinds.items() if kind != "state" for w in self.writes[name]]


def split_sides(
    graph: Graph, traced: TracedStep, marks: Sequence[TracedGradient], access: Mapping[str, Access]
) -> Sides:
    """Split a step into forward and update."""
    uses = resource_uses(graph)
    writes = {
        v.name: tuple(w for w in uses[access[v.name].handle.name].writes if w != access[v.name].load.name)
        for v in traced.variables
    }
    boundary = frozenset(n for m in marks for n in (m.values, m.indices) if n is not None)
    after = _after(graph, boundary, uses)
    # Assignments of a later forward pass are state, although it reads updated values.
    from_gradients = descendants(graph, boundary, control=False)
    own = descendants(graph, [b.node for b in traced.batch], stop=boundary, control=False) - from_gradients
    marked = {m.variable for m in marks}
    kinds = {v.name: _kind(v, marked, writes[v.name], after - own) for v in traced.variables}
    state_writes = [w for name, kind in kinds.items() if kind == "state" for w in writes[name]]
    results = [producer(traced.loss), *(r.tensor for r in traced.results)]
    updates = {w for name, kind in kinds.items() if kind != "state" for w in writes[name]}
    forward = ancestors(graph, [*boundary, *results, *state_writes], stop=updates)
    return Sides(
        boundary=boundary, after=after, forward=frozenset(forward), kinds=kinds, writes=writes, uses=uses
    )


def _after(graph: Graph, boundary: frozenset[str], uses: Mapping[str, Uses]) -> frozenset[str]:
    """Data descendants of gradients; a read that waits for an update's write continues them."""
    reads = {name for use in uses.values() for name in use.reads}
    writes = {name for use in uses.values() for name in use.writes}
    reached: set[str] = set()
    fresh = set(boundary)
    while fresh:
        new = descendants(graph, fresh, stop=reached, control=False)
        reached |= new
        waiting = (user.name for write in new & writes for user in graph.consumers.get(write, ()))
        fresh = reads.intersection(waiting) - reached
    return frozenset(reached)


def _kind(v: TracedVariable, marked: set[str], writes: Sequence[str], after: AbstractSet[str]) -> Kind:
    if v.name in marked:
        return "trainable"
    if v.optimizer_owned or any(write in after for write in writes):
        return "slot"
    # A tf.Variable is trainable by default; a counter or average often is by oversight.
    return "trainable" if v.trainable and not writes else "state"


def used_gradients(
    graph: Graph, marks: Sequence[TracedGradient], roots: Iterable[str]
) -> tuple[TracedGradient, ...]:
    """Gradients that these nodes use; gradients that are only taken cross no boundary."""
    needed = ancestors(graph, roots)
    return tuple(mark for mark in marks if mark.values in needed or mark.indices in needed)


def outermost_gradients(graph: Graph, marks: Sequence[TracedGradient]) -> tuple[TracedGradient, ...]:
    """Gradients of calls from which no other call's gradient is computed."""
    if len({mark.call for mark in marks}) < 2:
        return tuple(marks)
    leads_to: dict[str, set[int]] = {}
    waiting = [(mark.values, mark.call) for mark in marks]
    while waiting:
        name, call = waiting.pop()
        calls = leads_to.setdefault(name, set())
        # Two calls are enough to detect another one, and keep the walk linear.
        if call not in calls and len(calls) < 2:
            calls.add(call)
            waiting += [(producer(ref), call) for ref in graph.by_name[name].data_inputs]
    inner = {mark.call for mark in marks if leads_to[mark.values] - {mark.call}}
    return tuple(mark for mark in marks if mark.call not in inner)


Owners: TypeAlias = Mapping[str, tuple[str | None, str]]
"""Variable → its group, and its trainable variable if it is a slot."""
_REDUCTIONS = frozenset({*REDUCTIONS, "EuclideanNorm", "L2Loss", "Mean"})
_NUMBER = re.compile(r"__\d+$")


def slot_owners(
    variables: Sequence[TracedVariable], kinds: Mapping[str, Kind]
) -> dict[str, tuple[str | None, str]]:
    """Owner and group of each variable, by its optimizer or its name (`adam/dense_kernel_momentum`)."""
    by_flat_name = {v.name.replace("/", "_"): v.name for v in variables if kinds[v.name] == "trainable"}
    return {v.name: _owner(v, kinds, by_flat_name) for v in variables}


def _owner(
    v: TracedVariable, kinds: Mapping[str, Kind], by_flat_name: Mapping[str, str]
) -> tuple[str | None, str]:
    kind = kinds[v.name]
    if kind != "slot":
        return None, kind
    if v.slot_of is not None and kinds.get(v.slot_of) == "trainable":
        return v.slot_of, v.group or "slot"
    tail = v.name.rpartition("/")[2]
    end = tail.rfind("_")
    while end > 0:  # from the longest stem to the shortest
        if tail[:end] in by_flat_name:
            return by_flat_name[tail[:end]], tail[end + 1 :]
        end = tail.rfind("_", 0, end)
    return None, tail


def owners_by_data(
    graph: Graph,
    variables: Sequence[TracedVariable],
    parts: Sides,
    handles: Mapping[str, str],
    gradients: Mapping[str, str],
    owners: Owners,
) -> Owners:
    """Complete the owners: infer those of unnamed slots from data flow.

    A slot belongs to the trainable of its shape if only that trainable's gradient, value and slots make its
    new value, reductions (norms) aside. Slots that forward reads have no owner.

    Args:
        handles: variable → handle node. gradients: boundary node → variable.
        owners: owners known by name.
    """
    shapes = {v.name: v.shape.dims for v in variables}
    trainables = {v.name for v in variables if parts.kinds[v.name] == "trainable"}
    able = {shapes[name] for name in trainables} - {None}
    left = [
        v.name
        for v in variables
        if parts.kinds[v.name] == "slot"
        and owners[v.name][0] is None
        and shapes[v.name] in able
        and not _is_read_by_forward(graph, parts, handles[v.name])
    ]
    known = dict(owners)
    while left:
        families = {name: name if name in trainables else owner for name, (owner, _) in known.items()}
        origins = {handles[name]: family for name, family in families.items() if family is not None}
        made_of = _made_of(graph, {**origins, **gradients})
        more: dict[str, tuple[str | None, str]] = {}
        for name in left:
            values = (
                producer(ref)
                for write in parts.writes[name]
                for ref in graph.by_name[write].data_inputs
                if producer(ref) != handles[name]
            )
            families_of = frozenset[str]().union(*(made_of[value] for value in values))
            owner = next(iter(families_of), None)
            if len(families_of) == 1 and owner is not None and shapes[owner] == shapes[name]:
                more[name] = owner, _NUMBER.sub("", known[name][1])
        if not more:
            break
        known |= more
        left = [name for name in left if name not in more]
    return known


def _is_read_by_forward(graph: Graph, parts: Sides, handle: str) -> bool:
    reads = parts.forward.intersection(parts.uses[handle].reads)
    return any(graph.by_name[name].op not in UNCHANGED for name in reads)


def _made_of(graph: Graph, origins: Mapping[str, str]) -> dict[str, frozenset[str]]:
    made_of: dict[str, frozenset[str]] = {}
    for node in topological_order(graph.nodes):
        if node.name in origins:
            made_of[node.name] = frozenset((origins[node.name],))
        elif node.op in _REDUCTIONS:
            made_of[node.name] = frozenset()
        else:
            # The walk has not yet visited the back edge of a loop.
            of = frozenset[str]().union(*(made_of.get(producer(ref), ()) for ref in node.data_inputs))
            made_of[node.name] = of if len(of) <= 2 else frozenset(sorted(of)[:2])
    return made_of
