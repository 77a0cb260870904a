"""TensorFlow's fused update kernels, each replacing a dozen small operations per variable."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import ml_dtypes
import numpy as np

from strategies.errors import GraphError
from strategies.ir.graph import Attr, Node, after, producer
from strategies.ir.resource_uses import resource_uses
from strategies.ir.tensor_proto import const, constant_array
from strategies.ir.train_graph import TrainGraph, UpdateRegion
from strategies.ir.traversal import prune, topological_order
from strategies.ir.variable import Variable
from strategies.passes.task_plan import TaskPlan
from strategies.passes.update.kernels import (
    GRADIENT,
    KERNELS,
    NOTHING,
    Input,
    Kernel,
    Leaf,
    Match,
    Matcher,
    OneMinus,
    Slot,
)
from strategies.passes.update.linear_rows import StaticShapes
from strategies.topology import Topology

# Roundings: about the number of operations of an optimizer, which a kernel replaces by one.
_ROUNDINGS = 8
_TYPES = frozenset({"half", "bfloat16", "float", "double"})


@dataclass(frozen=True, kw_only=True, slots=True)
class FuseUpdates:
    """Replace the assignments of a variable and its slots by one kernel that computes the same.

    It runs first, so that later passes treat kernels like any other update.
    """

    name: ClassVar[str] = "fuse-updates"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:  # noqa: ARG002 - the form of every pass
        fusions = {fusion.anchor: fusion for fusion in _fusions(graph)}
        if not fusions:
            return graph
        replaced = {name: fusion.anchor for fusion in fusions.values() for name in fusion.slot_writers}
        nodes = [
            new_node
            for node in graph.graph.nodes
            if node.name not in replaced
            for new_node in (
                fusions[node.name].nodes if node.name in fusions else (_waiting(node, replaced),)
            )
        ]
        try:
            ordered = topological_order(nodes)
        except GraphError:
            return graph
        regions = tuple(_with_kernels(region, fusions, replaced) for region in graph.regions)
        fused = replace(graph, graph=graph.graph.with_nodes(ordered), regions=regions)
        return _pruned(fused)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Fusion:
    """A kernel that replaces several assignments, and the constants that it reads.

    Attributes:
        anchor: variable's assignment, whose name the kernel takes.
        slot_writers: assignments of slots that the kernel replaces.
        nodes: constants and kernel.
    """

    anchor: str
    slot_writers: tuple[str, ...]
    nodes: tuple[Node, ...]


def _fusions(graph: TrainGraph) -> Iterator[_Fusion]:
    loads = {v.load for v in graph.variables}
    written = {
        handle: [name for name in uses.writes if name not in loads]
        for handle, uses in resource_uses(graph.graph).items()
    }
    matcher = Matcher(
        graph=graph.graph, writers={handle: names[0] for handle, names in written.items() if len(names) == 1}
    )
    shapes = StaticShapes(graph)
    by_handle = {v.handle: v for v in graph.variables}
    for region in graph.regions:
        for target in region.targets:
            node = graph.graph.by_name[target]
            variable = by_handle.get(producer(node.data_inputs[0])) if node.data_inputs else None
            if variable is not None and variable.name == region.variable and variable.dtype in _TYPES:
                fusion = _fusion(matcher, shapes, by_handle, variable, node)
                if fusion is not None:
                    yield fusion


def _fusion(
    matcher: Matcher,
    shapes: StaticShapes,
    by_handle: Mapping[str, Variable],
    variable: Variable,
    anchor: Node,
) -> _Fusion | None:
    for kernel in KERNELS:
        if anchor.op != kernel.step.op:
            continue
        for match in matcher.matches(kernel.step.value, anchor.data_inputs[1], NOTHING):
            for whole in _with_slots(matcher, kernel, list(kernel.slots), match):
                alike = [by_handle.get(handle) for handle in whole.slots.values()]
                fits = all(
                    v is not None and v.dtype == variable.dtype and v.shape == variable.shape for v in alike
                )
                exact = (_is_exact(matcher, whole.leaves[name]) for name in kernel.subtracted)
                if not fits or not all(exact):
                    continue
                if not all(shapes.is_scalar(whole.leaves[name]) for name in kernel.scalars):
                    continue
                if shapes.is_full(whole.leaves[GRADIENT.name], variable):
                    return _fused(matcher, kernel, whole, variable, anchor)
    return None


def _is_exact(matcher: Matcher, ref: str) -> bool:
    value = constant_array(matcher.graph.by_name[producer(ref)])
    if value is None or value.ndim:
        return False
    if value.dtype == np.float64:
        # A check in float64 must run the same graph as the float32 steps that it checks.
        value = value.astype(np.float32)
    one = value.dtype.type(1)
    # NumPy's own finfo knows no bfloat16; that of ml_dtypes has no types.
    eps = float(ml_dtypes.finfo(value.dtype).eps)  # type: ignore[no-untyped-call]
    return abs(float(one - (one - value)) - float(value)) <= _ROUNDINGS * eps * abs(float(value))


def _with_slots(matcher: Matcher, kernel: Kernel, slots: Sequence[str], partial: Match) -> Iterator[Match]:
    if not slots:
        yield partial
        return
    # A slot is known once a value of it is read; the others follow.
    known = next((slot for slot in slots if slot in partial.slots), None)
    if known is None:
        return
    writer = matcher.graph.by_name[matcher.writers[partial.slots[known]]]
    pattern = kernel.slots[known]
    if writer.op != pattern.op:
        return
    others = [slot for slot in slots if slot != known]
    for match in matcher.matches(pattern.value, writer.data_inputs[1], partial):
        yield from _with_slots(matcher, kernel, others, match)


def _fused(matcher: Matcher, kernel: Kernel, match: Match, variable: Variable, anchor: Node) -> _Fusion:
    by_name, consumers = matcher.graph.by_name, matcher.graph.consumers
    writers = tuple(matcher.writers[match.slots[slot]] for slot in kernel.slots)
    inside = {anchor.name, *writers, *match.nodes}
    left = {
        name
        for name in match.nodes
        if any(consumer.name not in inside for consumer in consumers.get(name, ()))
    }
    waits = {name for inner in sorted(inside) for name in by_name[inner].control_inputs}
    before = sorted(waits - inside | waits & left & set(match.before.values()))
    dtype = variable.dtype
    scalars: dict[str, Node] = {}

    def number(name: str, value: float) -> str:
        node = const(f"{anchor.name}/{name}", dtype, value, device=anchor.device)
        return scalars.setdefault(name, node).name

    def ref(kernel_input: Input) -> str:
        match kernel_input:
            case "variable":
                return anchor.data_inputs[0]
            case Slot(name):
                return match.slots[name]
            case Leaf(name):
                return match.leaves[name]
            case OneMinus(name):
                rest = Node(
                    name=f"{anchor.name}/one_minus_{name}",
                    op="Sub",
                    inputs=(number("one", 1.0), match.leaves[name]),
                    attrs={"T": dtype},
                    device=anchor.device,
                )
                return scalars.setdefault(name, rest).name
            case "one":
                return number("one", 1.0)
            case _:
                return number("zero", 0.0)

    inputs = tuple(ref(kernel_input) for kernel_input in kernel.inputs)
    # Like an assignment: of two concurrent ones, one waits.
    attrs: Mapping[str, Attr] = {"T": dtype, "use_locking": True, **kernel.attrs}
    node = Node(
        name=anchor.name,
        op=kernel.op,
        inputs=(*inputs, *after(before)),
        attrs=attrs,
        device=anchor.device,
    )
    return _Fusion(anchor=anchor.name, slot_writers=writers, nodes=(*scalars.values(), node))


def _waiting(node: Node, replaced: Mapping[str, str]) -> Node:
    if replaced.keys().isdisjoint(node.control_inputs):
        return node
    waits = dict.fromkeys(replaced.get(name, name) for name in node.control_inputs)
    return node.changed(inputs=(*node.data_inputs, *after(waits)))


def _with_kernels(
    region: UpdateRegion, fusions: Mapping[str, _Fusion], replaced: Mapping[str, str]
) -> UpdateRegion:
    nodes = [
        new_name
        for name in region.nodes
        if name not in replaced
        for new_name in ([node.name for node in fusions[name].nodes] if name in fusions else [name])
    ]
    targets = tuple(name for name in region.targets if name not in replaced)
    return replace(region, nodes=tuple(nodes), targets=targets)


def _pruned(step: TrainGraph) -> TrainGraph:
    graph = prune(step.graph, step.roots())
    by_name = graph.by_name
    regions = tuple(
        replace(region, nodes=tuple(name for name in region.nodes if name in by_name))
        for region in step.regions
    )
    shared = tuple(name for name in step.shared_update if name in by_name)
    return replace(step, graph=graph, regions=regions, shared_update=shared)
