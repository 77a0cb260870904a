"""Forward and update parts of a step, and the part to which each variable belongs."""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from strategies.ir.assembly.resources import Access
from strategies.ir.assembly.traced import TracedGradient, TracedStep, TracedVariable
from strategies.ir.graph import Graph, producer
from strategies.ir.resource_uses import Uses, resource_uses
from strategies.ir.traversal import ancestors, descendants
from strategies.ir.variable import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The two sides of a step.

    Attributes:
        boundary: identity nodes that gradients pass.
        after: what gets data from gradients, or reads what updates wrote.
        forward: what gradients, the loss and other results, and forward state need, the updates between a
            gradient and a later forward pass left out.
        kinds: variable → kind.
        writes: variable → the step's own assignments of it, in graph order.
        uses: handle node → who touches it.
    """

    boundary: frozenset[str]
    after: frozenset[str]
    forward: frozenset[str]
    kinds: Mapping[str, Kind]
    writes: Mapping[str, tuple[str, ...]]
    uses: Mapping[str, Uses]

    def update_writes(self) -> list[str]:
        """Assignments of trainables and slots."""
        return [w for name, kind in self.kinds.items() if kind != "state" for w in self.writes[name]]


def tell_apart(
    graph: Graph, traced: TracedStep, marks: Sequence[TracedGradient], access: Mapping[str, Access]
) -> Parts:
    """Find both sides."""
    uses = resource_uses(graph)
    writes = {
        v.name: tuple(w for w in uses[access[v.name].handle.name].writes if w != access[v.name].load.name)
        for v in traced.variables
    }
    boundary = frozenset(n for m in marks for n in (m.values, m.indices) if n is not None)
    after = _after(graph, boundary, uses)
    # What a later forward pass assigns of its examples is state, although it reads what an update wrote.
    from_gradients = descendants(graph, boundary, control=False)
    own = descendants(graph, [b.node for b in traced.batch], stop=boundary, control=False) - from_gradients
    marked = {m.variable for m in marks}
    kinds = {v.name: _kind(v, marked, writes[v.name], after - own) for v in traced.variables}
    state_writes = [w for name, kind in kinds.items() if kind == "state" for w in writes[name]]
    results = [producer(traced.loss), *(r.node for r in traced.results)]
    updates = {w for name, kind in kinds.items() if kind != "state" for w in writes[name]}
    forward = ancestors(graph, [*boundary, *results, *state_writes], stop=updates)
    return Parts(
        boundary=boundary, after=after, forward=frozenset(forward), kinds=kinds, writes=writes, uses=uses
    )


def _after(graph: Graph, boundary: frozenset[str], uses: Mapping[str, Uses]) -> frozenset[str]:
    """Data descendants of gradients; a read that waits for an update's write hands its value on as well."""
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
    # A tf.Variable is trainable unless its author says otherwise; a counter or average often is by oversight.
    return "trainable" if v.trainable and not writes else "state"


def needed_by(
    graph: Graph, marks: Sequence[TracedGradient], roots: Iterable[str]
) -> tuple[TracedGradient, ...]:
    """The gradients that some of these nodes are computed from; what is only taken crosses no boundary."""
    needed = ancestors(graph, roots)
    return tuple(mark for mark in marks if mark.values in needed or mark.indices in needed)


def outermost(graph: Graph, marks: Sequence[TracedGradient]) -> tuple[TracedGradient, ...]:
    """The gradients of calls from which no other call's gradient is computed."""
    if len({mark.call for mark in marks}) < 2:
        return tuple(marks)
    leads_to: dict[str, set[int]] = {}
    waiting = [(mark.values, mark.call) for mark in marks]
    while waiting:
        name, call = waiting.pop()
        calls = leads_to.setdefault(name, set())
        # Two calls are enough to tell that there is another one, and keep the walk linear.
        if call not in calls and len(calls) < 2:
            calls.add(call)
            waiting += [(producer(ref), call) for ref in graph.by_name[name].data_inputs]
    inner = {mark.call for mark in marks if leads_to[mark.values] - {mark.call}}
    return tuple(mark for mark in marks if mark.call not in inner)
