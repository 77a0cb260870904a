"""Assembly of a `TrainGraph` from a traced step: its sides, results and batch statistics."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from strategies.errors import CaptureError
from strategies.ir.assembly.resources import Access, access_nodes, with_resources, with_row_lookups
from strategies.ir.assembly.split import Sides, outermost_gradients, owners_by_data, slot_owners, split_sides
from strategies.ir.assembly.state_rules import assignments_as_additions, seed_words, state_rules
from strategies.ir.assembly.traced import TracedGradient, TracedStep
from strategies.ir.assembly.update_region import UpdateSide, detach_update, update_side, wait_for_gradients
from strategies.ir.assembly.written_values import calls_after_writes, merge_state, with_values_read
from strategies.ir.control_flow import without_waits_across_loops
from strategies.ir.graph import DType, Graph, Node, Shape, producer
from strategies.ir.ops import READ_OPS
from strategies.ir.random_ops import draws, draws_from_op, moves_generator, reseed
from strategies.ir.resource_uses import resource_uses
from strategies.ir.side_effects import SideEffects, release_from_effects, side_effects
from strategies.ir.train_graph import Boundary, Loss, Reduction, Result, Statistic, TrainGraph
from strategies.ir.traversal import ancestors, descendants, levels_of, prune
from strategies.ir.variable import Variable


@dataclass(frozen=True, slots=True, kw_only=True)
class Sorted:
    """Results that a shard computes before any assignment, and names of the later ones."""

    loss: str
    own: tuple[Result, ...]
    late: tuple[str, ...]


def sort_results(graph: Graph, traced: TracedStep, access: Mapping[str, Access]) -> Sorted:
    """Separate results that a shard computes by itself from those that follow an update.

    A result behind the boundary, or after an assignment that gradients do not wait for, is computed once for
    all shards. If that holds for the loss (Keras returns a running mean), the gradients' target is the loss.
    """
    loads = {a.load.name for a in access.values()}
    boundary = {n for mark in traced.marks for n in (mark.values, mark.indices) if n is not None}
    changed = {w for uses in resource_uses(graph).values() for w in uses.writes if w not in loads}
    after = descendants(graph, boundary | (changed - ancestors(graph, boundary)))
    candidates = [traced.loss, *([] if traced.target is None else [traced.target])]
    return Sorted(
        loss=next((loss for loss in candidates if producer(loss) not in after), traced.loss),
        own=tuple(r for r in traced.results if r.tensor not in after),
        late=tuple(r.name for r in traced.results if r.tensor in after),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Marked statistics, and layer → reason why its statistics stay local to a shard."""

    marked: tuple[Statistic, ...]
    own: Mapping[str, str]


def statistics_of(
    graph: Graph, traced: Sequence[Statistic], own: Mapping[str, str], forward: Sequence[str]
) -> Statistics:
    """Select the traced statistics that are still in the graph.

    Args:
        own: layer → known reason why its statistics stay local to a shard.
        forward: nodes of the loss and of new forward state.
    """
    alive = [t for t in traced if t.node in graph.by_name]
    if not alive:
        return Statistics(marked=(), own=dict(own))
    levels = levels_of(graph, {t.node for t in alive})
    marked = tuple(replace(t, level=levels[t.node]) for t in alive)
    return Statistics(marked=marked, own={**_obstacles(graph, alive, forward), **own})


def _obstacles(graph: Graph, traced: Sequence[Statistic], forward: Sequence[str]) -> dict[str, str]:
    if reseed(graph, 1) is not graph:
        # The reference runs a shard's forward pass in parts, from the start each time.
        reason = "is in a step with random operations that cannot be repeated; draw with keras.random instead"
        return {t.layer: reason for t in traced}
    # A gradient that the loss depends on is not that of a mean over the batch, and would get a wrong weight.
    heads = {*forward, *(t.node for t in traced if not t.backward)}

    def leads_on(*marks: Statistic) -> bool:
        return not heads.isdisjoint(descendants(graph, [t.node for t in marks], control=False))

    backward = [t for t in traced if t.backward]
    # Almost no step needs the walk.
    wrong = [t for t in backward if leads_on(t)] if leads_on(*backward) else []
    return {t.layer: "is differentiated within the loss; take gradients of the loss only" for t in wrong}


_CallRewrite: TypeAlias = Callable[[Graph, Mapping[str, tuple[DType, Shape]], Collection[str]], Graph]
"""Graph, handle → type and shape, calls → graph in which these calls take values of the variables."""


def assemble(traced: TracedStep, calls_with_values: _CallRewrite | None = None) -> TrainGraph:
    """Assemble a `TrainGraph` from a traced step.

    Args:
        calls_with_values: rewrite that lets top-level loops and branches read assigned variables as tensors.
    Raises:
        CaptureError: an update reads forward values past the boundary or runs before a gradient, or forward
            state is written where its replicas cannot be merged.
    """
    access = access_nodes(traced.variables)
    graph, must_run = without_waits_across_loops(with_resources(traced, access), traced.must_run)
    traced = replace(traced, must_run=must_run)
    graph = with_row_lookups(graph, {a.handle.name for a in access.values()})
    results = sort_results(graph, traced, access)
    notes = _result_notes(results, traced.loss)
    traced = replace(traced, results=results.own, loss=results.loss)
    graph = _alive(graph, traced, access)
    marks = outermost_gradients(graph, traced.marks)
    graph, parts, variables = _described(graph, traced, marks, access, calls_with_values)
    graph = detach_update(graph, parts)
    graph = wait_for_gradients(graph, parts, marks, access)
    merged = merge_state(graph, variables, parts)
    graph = merged.graph
    boundaries = (*_gradient_boundaries(graph, marks, variables, traced.reduction), *merged.boundaries)
    levels = levels_of(graph, {n for b in boundaries for n in (b.values, b.indices) if n is not None})
    boundaries = tuple(replace(b, level=levels[b.values]) for b in boundaries)
    order = {node.name: i for i, node in enumerate(graph.nodes)}
    update = update_side(graph, variables, parts, order, levels)
    accounted = {n for region in update.regions for n in region.nodes}.union(update.shared, merged.dropped)
    written = [write for v in variables if v.kind == "state" for write in parts.writes[v.name]]
    statistics = statistics_of(
        graph, traced.statistics, traced.own_statistics, [producer(traced.loss), *written]
    )
    own_statistics = statistics.own
    if max(levels[b.values] for b in boundaries) > 1:
        _check_repeatable(graph, parts)
        reason = (
            "must be in a step of one update, got several gradients and updates in a row; make them steps of "
            "their own"
        )
        own_statistics = {**dict.fromkeys((s.layer for s in statistics.marked), reason), **own_statistics}
    effects = side_effects(graph, traced.must_run, accounted, traced.stateful_ops)
    step = TrainGraph(
        graph=graph,
        variables=variables,
        boundaries=boundaries,
        regions=update.regions,
        shared_update=update.shared,
        batch=traced.batch,
        losses=(Loss(tensor=traced.loss, reduction=traced.reduction),),
        state_targets=(*effects.state, *_shown_alone(graph, boundaries, update, effects)),
        effects=effects.seen,
        tables=tuple(name for table in traced.tables for name in table.initializers),
        statistics=statistics.marked,
        own_statistics=own_statistics,
        synchronized=traced.synchronized,
        readiness=_readiness(boundaries, graph, order),
        results=results.own,
        notes=notes,
    )
    released = release_from_effects(graph, effects.seen, replace(step, effects=()).roots())
    return replace(step, graph=prune(released, step.roots()))


def _shown_alone(
    graph: Graph, boundaries: Sequence[Boundary], update: UpdateSide, effects: SideEffects
) -> tuple[str, ...]:
    """Gradients that only visible effects use: one replica shows them, all must contribute to them."""
    targets = [target for region in update.regions for target in region.targets]
    needed = ancestors(graph, [*targets, *effects.state])
    return tuple(b.values for b in boundaries if b.role == "gradient" and b.values not in needed)


def _check_repeatable(graph: Graph, parts: Sides) -> None:
    """Check that a forward pass can be repeated: the reference repeats a shard's once per gradient."""
    drawing = (n for n in graph.nodes if n.name in parts.forward and draws(graph, n))
    hidden = next((n for n in drawing if not draws_from_op(n) and not moves_generator(graph, n)), None)
    if hidden is not None:
        raise CaptureError(
            "train step: where gradients and updates follow each other, loops, branches and nested functions "
            f"draw from a state, got {hidden.op} {hidden.name!r}; draw with keras.random or a "
            "tf.random.Generator",
            node=hidden.name,
        )


def _alive(graph: Graph, traced: TracedStep, access: Mapping[str, Access]) -> Graph:
    roots = [n for mark in traced.marks for n in (mark.values, mark.indices) if n is not None]
    roots += [producer(traced.loss), *(r.tensor for r in traced.results), *(b.node for b in traced.batch)]
    roots += [node.name for a in access.values() for node in a.nodes()]
    roots += [name for table in traced.tables for name in table.initializers]
    roots += [n for n in traced.must_run if n in graph.by_name and graph.by_name[n].op not in READ_OPS]
    return prune(graph, dict.fromkeys(roots))


def _result_notes(results: Sorted, returned_loss: str) -> tuple[str, ...]:
    notes = []
    if results.loss != returned_loss:
        notes.append(
            "the loss shown is the tensor that gradients are taken of, because the step returns its loss "
            "after an update or an assignment (a metric's running mean, for example)"
        )
    if results.own:
        notes.append(
            "timed steps fetch the loss alone; `verify` reports the step's other results: "
            f"{', '.join(result.name for result in results.own)}"
        )
    if results.late:
        notes.append(
            "not fetched, because they are computed after an update or an assignment, which replicas make "
            f"together: {', '.join(results.late)}; update a Keras metric in the step instead"
        )
    return tuple(notes)


def _described(
    graph: Graph,
    traced: TracedStep,
    marks: Sequence[TracedGradient],
    access: Mapping[str, Access],
    calls_with_values: _CallRewrite | None,
) -> tuple[Graph, Sides, tuple[Variable, ...]]:
    handles = {name: a.handle.name for name, a in access.items()}
    parts = split_sides(graph, traced, marks, access)
    seeds = seed_words(graph, traced.variables, parts, handles)
    reads = {n.name: n.inputs[0] for n in graph.nodes if n.op == "ReadVariableOp"}
    scalars = {v.name for v in traced.variables if v.shape.dims == ()}
    added = assignments_as_additions(graph, parts, reads, skip=seeds.keys(), scalars=scalars)
    if added is not graph:
        graph = _alive(added, traced, access)
        parts = split_sides(graph, traced, marks, access)
    values = {access[v.name].handle.name: (v.dtype, v.shape) for v in traced.variables}
    while True:  # a value may depend on an earlier assignment, which joins the forward pass
        calls = calls_after_writes(graph, parts) if calls_with_values is not None else ()
        rewritten = calls_with_values(graph, values, calls) if calls_with_values and calls else graph
        if rewritten is not graph:
            parts = split_sides(rewritten, traced, marks, access)
        changed = with_values_read(rewritten, parts, access)
        if changed is graph:
            break
        graph = changed
        parts = split_sides(graph, traced, marks, access)
    rules = state_rules(graph, traced.variables, parts, handles, seeds, [b.node for b in traced.batch])
    rules |= {name: rule for name, rule in traced.rules.items() if name in rules}
    gradients = {n: mark.variable for mark in marks for n in (mark.values, mark.indices) if n is not None}
    named = slot_owners(traced.variables, parts.kinds)
    owners = owners_by_data(graph, traced.variables, parts, handles, gradients, named)
    variables = tuple(
        Variable(
            name=v.name,
            kind=parts.kinds[v.name],
            group=owners[v.name][1],
            dtype=v.dtype,
            shape=v.shape,
            handle=access[v.name].handle.name,
            placeholder=access[v.name].placeholder.name,
            load=access[v.name].load.name,
            read=access[v.name].read.name,
            slot_of=owners[v.name][0],
            rule=rules.get(v.name),
            seed_word=seeds.get(v.name),
        )
        for v in traced.variables
    )
    return graph, parts, variables


def _gradient_boundaries(
    graph: Graph, marks: Sequence[TracedGradient], variables: Sequence[Variable], reduction: Reduction
) -> tuple[Boundary, ...]:
    shapes = {v.name: v.shape for v in variables}
    return tuple(
        Boundary(
            variable=mark.variable,
            role="gradient",
            rule=reduction,
            dtype=_type(graph.by_name[mark.values]),
            shape=shapes[mark.variable],
            values=mark.values,
            indices=mark.indices,
            index_dtype=None if mark.indices is None else _type(graph.by_name[mark.indices]),
        )
        for mark in marks
    )


def _type(node: Node) -> DType:
    dtype = node.attrs["T"]
    assert isinstance(dtype, DType)
    return dtype


def _readiness(boundaries: Sequence[Boundary], graph: Graph, order: Mapping[str, int]) -> dict[str, int]:
    produced_at = {
        b.variable: order[producer(graph.by_name[b.values].inputs[0])]
        for b in boundaries
        if b.role == "gradient"
    }
    return {name: place for place, name in enumerate(sorted(produced_at, key=produced_at.__getitem__))}
