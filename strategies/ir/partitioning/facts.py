"""Facts of tensors for partitioning: equal for all parts, or one per part."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np

from strategies.errors import StrategyError
from strategies.ir.graph import DType, Node
from strategies.ir.ops import ELEMENTWISE, REDUCTIONS
from strategies.ir.tensor_proto import constant_array


class FactKind(Enum):
    """Relation of a tensor of the whole step to its counterpart in a part.

    WHOLE is equal for all parts. Every other kind exists once per part, by a copy of the node: HANDLE of a
    variable; SPLIT, a range along an axis; ROWS and IDS of a sparse gradient in the part, ids counted from
    its start; ID_COLUMN, ids as [n, 1]; POSITIONS in such a list and POSITION_TABLE by id; COUNT, a list's
    length, and COUNT_SHAPE, a shape that starts with it; LENGTH, the part's length along axis 0, and
    LENGTH_SHAPE; SAME_COUNT, a comparison of two lists' lengths; ZERO_ROW, one row for its shape only.
    """

    WHOLE = auto()
    HANDLE = auto()
    SPLIT = auto()
    ROWS = auto()
    IDS = auto()
    ID_COLUMN = auto()
    POSITIONS = auto()
    POSITION_TABLE = auto()
    COUNT = auto()
    COUNT_SHAPE = auto()
    LENGTH = auto()
    LENGTH_SHAPE = auto()
    SAME_COUNT = auto()
    ZERO_ROW = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Facts about a tensor.

    Attributes:
        shape: shape of the whole tensor, -1 for a list's length; None if unknown. If the tensor is a shape,
            the shape that it describes.
        axis: axis of a SPLIT, from 0.
        variable: trainable to whose parts it belongs, None for WHOLE.
        values: flat values of a small WHOLE integer tensor, if known.
    """

    kind: FactKind
    shape: tuple[int, ...] | None = None
    axis: int = 0
    variable: str | None = None
    values: tuple[int, ...] | None = None


UNKNOWN = Fact(kind=FactKind.WHOLE)


class PartUse(Enum):
    """Form in which a part's copy of a node reads a WHOLE input."""

    SLICE = auto()
    LENGTH = auto()
    SHAPE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """An input that a part's copy reads in another form; shape and axis are those of a slice."""

    use: PartUse
    dtype: DType
    shape: tuple[int, ...] = ()
    axis: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOutcome:
    """Outcome of a rule.

    Attributes:
        variable: variable that is cut; the node has one copy per part.
        swaps: position of a data input → form in which copies read it.
        combine: operation that combines the copies' results.
    """

    outputs: tuple[Fact, ...]
    variable: str
    swaps: Mapping[int, Swap] = field(default_factory=dict)
    combine: str | None = None


class NotLocalError(StrategyError):
    """A node that parts of a variable cannot compute independently."""

    def __init__(self, reason: str, variables: Sequence[str]) -> None:
        super().__init__(reason)
        self.variables = tuple(variables)


def owner_of(facts: Sequence[Fact]) -> str:
    """Variable to whose parts these tensors belong.

    Raises:
        NotLocalError: they belong to several variables.
    """
    names = sorted({f.variable for f in facts if f.variable is not None})
    if len(names) > 1:
        raise NotLocalError(f"it combines {names[0]!r} and {names[1]!r}", names)
    return names[0]


def broadcast(shapes: Sequence[tuple[int, ...] | None]) -> tuple[int, ...] | None:
    """Broadcast shapes, None if one is unknown; -1 means any single length."""
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes) or not known:
        return None
    rank = max(map(len, known))
    padded = [(1,) * (rank - len(shape)) + shape for shape in known]
    return tuple(next((d for d in dims if d != 1), 1) for dims in zip(*padded, strict=True))


_MAX_VALUES = 8
_KEEP_VALUES = frozenset({"Identity", "Cast"})


def whole(shape: tuple[int, ...] | None, values: tuple[int, ...] | None = None) -> Fact:
    """A tensor that is the same for all parts."""
    return Fact(kind=FactKind.WHOLE, shape=shape, values=values)


def constant_fact(node: Node) -> Fact:
    """Fact of a Const."""
    array = constant_array(node)
    if array is None:
        return UNKNOWN
    is_known = array.dtype in (np.int32, np.int64) and array.size <= _MAX_VALUES
    return whole(array.shape, tuple(array.ravel().tolist()) if is_known else None)


def whole_fact(node: Node, facts: Sequence[Fact]) -> Fact:
    """Fact of a node's first output if all its inputs are whole."""
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
    """Index of the vector item that a StridedSlice takes, else None."""
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
    """Axes of a reduction, None if unknown."""
    if axes.values is None:
        return None
    return frozenset(a % rank for a in axes.values) if rank else frozenset()


def reduced_shape(node: Node, shape: tuple[int, ...] | None, axes: Fact) -> tuple[int, ...] | None:
    """Shape after a reduction, None if unknown."""
    over = None if shape is None else reduced_axes(len(shape), axes)
    if shape is None or over is None:
        return None
    if node.attrs.get("keep_dims"):
        return tuple(1 if i in over else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in over)
