"""Summary of a captured step for builders."""

from collections import Counter
from collections.abc import Container, Mapping

from strategies.ir.graph import element_bytes, n_elements, producer
from strategies.ir.ops import UNCHANGED
from strategies.ir.partitioning.propagate import axes_to_cut, spread_along, update_reach
from strategies.ir.replica_updates import prior_reads, replica_targets
from strategies.ir.resource_uses import resource_uses
from strategies.ir.train_graph import Statistic, TrainGraph
from strategies.ir.traversal import ancestors, levels_of
from strategies.ir.variable import Variable
from strategies.passes.replicate.hoist_reads import hoisted as with_hoisted_reads
from strategies.passes.update.linear_rows import read_linearly
from strategies.plan.schema import BatchSummary, Rows, StatisticSummary, StepSummary, VariableSummary


def summarise(step: TrainGraph, workload: str, rows: Mapping[str, Rows]) -> StepSummary:
    """Summarise variables, their sizes and their gradients.

    Args:
        rows: variable → rows of its sparse gradient, if known.
    """
    hoisted = with_hoisted_reads(step)
    spreads = spread_along(hoisted)
    axes = axes_to_cut(hoisted, spreads)
    reach = update_reach(hoisted)
    parts_apart = [reach.parts_apart(along) for along in spreads]
    sparse = {b.variable for b in step.boundaries if b.indices is not None}
    linear = read_linearly(step)
    crossings = Counter(b.variable for b in step.boundaries)
    dense = Counter(b.variable for b in step.boundaries if b.indices is None and b.variable in sparse)
    updates = Counter(region.variable for region in step.regions)
    reads = _reads(hoisted)
    only_read = _only_read(hoisted, reads, crossings)
    read_before = prior_reads(hoisted, [v for v in hoisted.variables if v.name in reach.apart])

    def of(v: Variable) -> VariableSummary:
        dims = v.shape.dims or ()
        return VariableSummary(
            name=v.name,
            kind=v.kind,
            slot_of=v.slot_of,
            rule=v.rule,
            dtype=v.dtype,
            shape=dims,
            bytes=element_bytes(v.dtype) * n_elements(dims),
            sparse=v.name in sparse,
            rows_per_example=rows[v.name].per_example if v.name in rows else None,
            rows_per_step=rows[v.name].per_step if v.name in rows else 0.0,
            linear_rows=v.name in linear,
            synced=v.name in crossings,
            readiness=step.readiness.get(v.name),
            partitionable_axes=axes.get(v.name, ()),
            cut_refusals={
                axis: along.refused[v.name] for axis, along in enumerate(spreads) if v.name in along.refused
            },
            apart=v.name in reach.apart,
            apart_axes=tuple(axis for axis in axes.get(v.name, ()) if v.name in parts_apart[axis]),
            gradient_shared=v.name in reach.shared_gradients,
            crossings=crossings.get(v.name, 1),
            dense_crossings=dense.get(v.name, 0),
            reads=reads[v.name],
            updates=updates.get(v.name, 1),
            read_before_update=v.handle in read_before,
            only_read=v.name in only_read,
        )

    return StepSummary(
        workload=workload,
        n_nodes=len(step.graph.nodes),
        variables=tuple(of(v) for v in step.variables),
        batch=tuple(BatchSummary(path=b.path, dtype=b.dtype, shape=b.shape.dims or ()) for b in step.batch),
        statistics=_statistics(step),
        own_statistics=dict(step.own_statistics),
        synchronized=step.synchronized,
        notes=step.notes,
    )


def _reads(step: TrainGraph) -> dict[str, int]:
    """Number of levels at which a replica reads each variable's value."""
    by_name = step.graph.by_name
    crossing = {n for b in step.boundaries for n in (b.values, b.indices) if n is not None}
    levels, uses = levels_of(step.graph, crossing), resource_uses(step.graph)
    # Timed steps fetch no results.
    roots = [producer(by_name[n].inputs[0]) for n in crossing]
    roots += [*(producer(loss.tensor) for loss in step.losses), *replica_targets(step)]
    stop = crossing.union(step.update_nodes(), (v.handle for v in step.variables))
    needed = {n for n in ancestors(step.graph, roots, stop=stop) if by_name[n].op not in UNCHANGED}
    read_at = {v.name: needed.intersection(uses[v.handle].reads) for v in step.variables}
    return {name: len({levels[read] for read in own}) for name, own in read_at.items()}


def _only_read(step: TrainGraph, reads: Mapping[str, int], synced: Container[str]) -> set[str]:
    """Variables that replicas read and no step writes, and their slots."""
    uses = resource_uses(step.graph)
    written = {v.slot_of or v.name for v in step.variables if set(uses[v.handle].writes) - {v.load}}
    only_read = {
        v.name
        for v in step.variables
        if v.kind != "slot" and reads[v.name] and v.name not in written and v.name not in synced
    }
    return only_read.union(v.name for v in step.variables if v.slot_of in only_read)


def _statistics(step: TrainGraph) -> tuple[StatisticSummary, ...]:
    by_layer: dict[str, list[Statistic]] = {}
    for statistic in step.statistics:
        by_layer.setdefault(statistic.layer, []).append(statistic)
    return tuple(
        StatisticSummary(
            layer=layer,
            bytes=sum(element_bytes(s.dtype) * n_elements(s.shape.dims or ()) for s in statistics),
            levels=tuple(s.level for s in statistics),
        )
        for layer, statistics in by_layer.items()
    )
