"""Variables cut into parts along an axis, with their slots, gradients and updates; reads join the parts."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.errors import StrategyError
from strategies.ir.graph import Node, Shape
from strategies.ir.partitioning.propagate import Spread, spread
from strategies.ir.train_graph import Boundary, TrainGraph, UpdateRegion
from strategies.ir.variable import Cut, Part, Variable, part_name
from strategies.passes.partition.names import PartNames, PartSnippets
from strategies.passes.partition.parts import PartGradients, PartReads, PartUpdates
from strategies.passes.task_plan import TaskPlan
from strategies.topology import Topology


def partitioned(step: TrainGraph, cuts: Mapping[str, Cut], spread: Spread) -> TrainGraph:
    """Rewrite a step in one sweep over its nodes, with a variable for each part.

    Args:
        cuts: trainable or slot → its cut.
        spread: effect of the cuts on the nodes of the update.
    """
    names = PartNames(step, cuts, spread.outcomes)
    snippets = PartSnippets(names.prefix)
    updates = PartUpdates(names, spread.outcomes, snippets)
    reads = PartReads(step.graph, names, spread.facts, snippets)
    gradients = PartGradients(step.graph, names, snippets)
    accesses = {node: v for v in names.variables.values() for node in v.access}
    nodes: list[Node] = []
    for node in step.graph.nodes:
        if node.name in names.boundaries:
            nodes += gradients.split(node)
        elif node.name in names.indices:
            pass  # created with the values
        elif node.name in spread.outcomes:
            nodes += updates.copies(node)
        elif node.name in names.reads:
            nodes += reads.read(node)
        elif node.name in accesses:
            nodes += _accesses(names, accesses[node.name], node)
        else:
            nodes += reads.single(node)
    return _described(replace(step, graph=step.graph.with_nodes(nodes)), names, updates.shared)


def _accesses(names: PartNames, variable: Variable, node: Node) -> Iterator[Node]:
    for index in range(names.n_parts(variable.name)):
        name = names.copy(node.name, index)
        attrs = dict(node.attrs)
        if "shape" in attrs:
            attrs["shape"] = Shape(names.part_shape(variable.name, index))
        if "shared_name" in attrs:
            attrs["shared_name"] = name.encode()
        inputs = tuple(names.ref(ref, index) for ref in node.data_inputs)
        yield node.changed(name=name, inputs=inputs, attrs=attrs)


def _described(step: TrainGraph, names: PartNames, shared: Iterable[str]) -> TrainGraph:
    """Update the variables, boundaries, regions and targets of a step whose graph is already in parts.

    Args:
        shared: nodes that the pass has added to the update for all parts together.
    """
    order = {node.name: i for i, node in enumerate(step.graph.nodes)}
    cut_regions = [region for region in step.regions if region.variable in names.cuts]
    # Values that all parts need no longer belong to a single part.
    needed = [n for region in cut_regions for n in region.nodes if names.owner(n) is None]
    shared_update = dict.fromkeys([*names.rewritten(step.shared_update), *shared, *needed])
    return replace(
        step,
        variables=tuple(part for v in step.variables for part in _parts_of(names, v)),
        boundaries=tuple(part for b in step.boundaries for part in _boundaries(names, b)),
        regions=tuple(part for region in step.regions for part in _regions(names, region)),
        shared_update=tuple(sorted(shared_update, key=order.__getitem__)),
        state_targets=names.rewritten(step.state_targets),
        effects=names.rewritten(step.effects),
        readiness=_readiness(names, step.readiness),
    )


def _parts_of(names: PartNames, v: Variable) -> Iterator[Variable]:
    cut = names.cuts.get(v.name)
    if cut is None:
        # A slot of another shape stays whole, beside its variable's first part.
        owner = v.slot_of
        yield v if owner is None or owner not in names.cuts else replace(v, slot_of=part_name(owner, 0))
        return
    for index, start in enumerate(cut.starts):
        yield replace(
            v,
            name=part_name(v.name, index),
            slot_of=None if v.slot_of is None else part_name(v.slot_of, index),
            shape=Shape(names.part_shape(v.name, index)),
            handle=names.copy(v.handle, index),
            placeholder=names.copy(v.placeholder, index),
            load=names.copy(v.load, index),
            read=names.copy(v.read, index),
            part=Part(
                variable=v.name, index=index, axis=cut.axis, start=start, stop=start + cut.sizes[index]
            ),
        )


def _boundaries(names: PartNames, b: Boundary) -> Iterator[Boundary]:
    if b.values not in names.boundaries:
        yield b
        return
    for index in range(names.n_parts(b.variable)):
        yield replace(
            b,
            variable=part_name(b.variable, index),
            shape=Shape(names.cuts[b.variable].shape(b.shape.dims or (), index)),
            values=names.copy(b.values, index),
            indices=None if b.indices is None else names.copy(b.indices, index),
        )


def _regions(names: PartNames, region: UpdateRegion) -> Iterator[UpdateRegion]:
    if region.variable not in names.cuts:
        yield replace(region, nodes=names.rewritten(region.nodes), targets=names.rewritten(region.targets))
        return
    own = [node for node in region.nodes if names.owner(node) is not None]
    once = [target for target in region.targets if names.owner(target) is None]
    targets = [target for target in region.targets if names.owner(target) is not None]
    for index in range(names.n_parts(region.variable)):
        yield replace(
            region,
            variable=part_name(region.variable, index),
            nodes=tuple(copy for node in own for copy in names.copy_with_constants(node, index)),
            targets=(*(names.copy(t, index) for t in targets), *(once if index == 0 else ())),
        )


def _readiness(names: PartNames, readiness: Mapping[str, int]) -> dict[str, int]:
    ordered: list[str] = []
    for name in sorted(readiness, key=readiness.__getitem__):
        cut = names.cuts.get(name)
        ordered += [name] if cut is None else [part_name(name, index) for index in range(cut.n)]
    return {name: place for place, name in enumerate(ordered)}


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionVariables:
    """Cut variables into parts; every part is a variable with slots, gradient and update of its own.

    Outside of the update the parts of a variable are read together, and looked up by id. Elementwise and
    row-wise operations of the update are copied for each part, sums over the whole become sums over parts,
    and nodes that several updates share are not copied.
    """

    name: ClassVar[str] = "partition"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:  # noqa: ARG002 - the form of every pass
        """Return the step with a variable for each part.

        Raises:
            StrategyError: an update needs the whole variable.
        """
        cuts = self.plan.cuts
        trainables = [v.name for v in graph.variables if v.name in cuts and v.slot_of is None]
        propagated = spread(graph, {name: cuts[name].axis for name in trainables})
        for name in trainables:
            if name in propagated.refused:
                raise StrategyError(
                    f"variable {name!r}: a partitioned variable must be updated elementwise or row by row, "
                    f"got {propagated.refused[name]}; keep it whole (`partition: null` in the plan)"
                )
        return partitioned(graph, cuts, propagated)
