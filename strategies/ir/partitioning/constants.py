"""Shapes and small integers of tensors that are the same for all parts."""

from collections.abc import Callable, Mapping, Sequence

from strategies.ir.graph import Node, TensorValue
from strategies.ir.partitioning.elementwise_ops import ELEMENTWISE, REDUCTIONS
from strategies.ir.partitioning.facts import UNKNOWN, Fact, FactKind, broadcast
from strategies.ir.text.tensors import tensor_integers

_KEEP_VALUES = frozenset({"Identity", "Cast"})


def whole(shape: tuple[int, ...] | None, values: tuple[int, ...] | None = None) -> Fact:
    """A tensor that is the same for all parts."""
    return Fact(kind=FactKind.WHOLE, shape=shape, values=values)


def constant_fact(node: Node) -> Fact:
    """Of a Const."""
    value = node.attrs.get("value")
    return whole(*tensor_integers(value.proto)) if isinstance(value, TensorValue) else UNKNOWN


def whole_fact(node: Node, facts: Sequence[Fact]) -> Fact:
    """Of a node's first output, when all of its inputs are whole."""
    if node.op in ELEMENTWISE:
        return _elementwise(node, facts)
    known = _KNOWN.get(node.op)
    return UNKNOWN if known is None else known(node, facts)


def _elementwise(node: Node, facts: Sequence[Fact]) -> Fact:
    return whole(broadcast([f.shape for f in facts]), facts[0].values if node.op in _KEEP_VALUES else None)


def _reduction(node: Node, facts: Sequence[Fact]) -> Fact:
    return whole(reduced_shape(node, facts[0].shape, facts[1]))


def _segments(node: Node, facts: Sequence[Fact]) -> Fact:  # noqa: ARG001 - as the others
    shape = facts[0].shape
    return UNKNOWN if shape is None else whole((*(facts[2].values or (-1,)), *shape[1:]))


def _item(node: Node, facts: Sequence[Fact]) -> Fact:
    item = sliced_item(node, facts)
    values = facts[0].values
    if item is None or values is None or item >= len(values):
        return UNKNOWN
    return whole((), (values[item],))


_KNOWN: Mapping[str, Callable[[Node, Sequence[Fact]], Fact]] = {
    **dict.fromkeys((*REDUCTIONS, "Mean"), _reduction),
    "Const": lambda node, _: constant_fact(node),
    "L2Loss": lambda _, __: whole(()),
    "Fill": lambda _, facts: whole(facts[0].values),
    "Pack": lambda _, facts: whole((len(facts),) if all(f.shape == () for f in facts) else None),
    "Select": lambda _, facts: whole(facts[1].shape),
    "StridedSlice": _item,
    "UnsortedSegmentSum": _segments,
}


def sliced_item(node: Node, facts: Sequence[Fact]) -> int | None:
    """Which item of a vector a StridedSlice takes, None when it takes anything else."""
    masks = [node.attrs.get(f"{name}_mask", 0) for name in ("begin", "end", "ellipsis", "new_axis")]
    begin, end, strides = (f.values for f in facts[1:4])
    if (
        any(masks)
        or node.attrs.get("shrink_axis_mask") != 1
        or begin is None
        or strides != (1,)
        or end is None
    ):
        return None
    return begin[0] if len(begin) == 1 and begin[0] >= 0 else None


def reduced_axes(rank: int, axes: Fact) -> frozenset[int] | None:
    """The axes over which a reduction goes, None when they are not known."""
    if axes.values is None:
        return None
    return frozenset(a % rank for a in axes.values) if rank else frozenset()


def reduced_shape(node: Node, shape: tuple[int, ...] | None, axes: Fact) -> tuple[int, ...] | None:
    """The shape that a reduction leaves."""
    over = None if shape is None else reduced_axes(len(shape), axes)
    if shape is None or over is None:
        return None
    if node.attrs.get("keep_dims"):
        return tuple(1 if i in over else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in over)
