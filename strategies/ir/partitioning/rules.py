"""Rules that apply an operation to the parts of a variable, its gradient and its rows.

A part holds the rows whose ids are in its range, with ids counted from its start. An op on rows follows a
part if it needs no row of another: elementwise, by id (gather, scatter, merge), or dense in the part's
length. Counts of rows serve as shapes and in comparisons of two lists.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from strategies.ir.graph import DType, Node
from strategies.ir.ops import (
    ASSIGNMENTS,
    DENSE_UPDATES,
    ELEMENTWISE,
    REDUCTIONS,
    SCATTERS,
    SPARSE_UPDATES,
    op_set,
)
from strategies.ir.partitioning.facts import (
    Fact,
    FactKind,
    NotLocalError,
    PartUse,
    RuleOutcome,
    Swap,
    broadcast,
    owner_of,
    reduced_axes,
    reduced_shape,
    sliced_item,
    whole,
)

Tables: TypeAlias = Mapping[str, tuple[tuple[int, ...], int]]
"""Variable → its shape and the axis along which it is cut."""
BOOL = DType("bool")
_KEEP_KIND = op_set("Identity Cast StopGradient Snapshot")
_LISTS = (FactKind.IDS, FactKind.ID_COLUMN, FactKind.POSITIONS)
_SHIFTED = {
    "AddV2": (FactKind.COUNT, FactKind.POSITIONS),
    "Add": (FactKind.COUNT, FactKind.POSITIONS),
    "Sub": (FactKind.COUNT,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands:
    """A node with the facts of its data inputs, and all variables that are cut."""

    node: Node
    facts: Sequence[Fact]
    tables: Tables

    @property
    def owner(self) -> str:
        return owner_of(self.facts)

    @property
    def kinds(self) -> tuple[FactKind, ...]:
        return tuple(fact.kind for fact in self.facts)

    @property
    def length(self) -> tuple[int, ...]:
        """Length of the owner along axis 0."""
        return self.tables[self.owner][0][:1]

    @property
    def has_scalars_besides(self) -> bool:
        """True if all whole inputs are scalars, or of unknown shape."""
        return all(f.shape in (None, ()) for f in self.facts if f.kind is FactKind.WHOLE)

    def refused(self, reason: str) -> NotLocalError:
        return NotLocalError(reason, sorted({f.variable for f in self.facts if f.variable is not None}))

    def gives(
        self,
        kind: FactKind,
        shape: tuple[int, ...] | None = None,
        axis: int = 0,
        swaps: Mapping[int, Swap] | None = None,
    ) -> RuleOutcome:
        """Outcome of an operation with one output per part."""
        fact = Fact(kind=kind, shape=shape, axis=axis, variable=self.owner)
        return RuleOutcome(outputs=(fact,), variable=self.owner, swaps=swaps or {})

    def slice(self, k: int, axis: int) -> Swap:
        """Swap for the part's range of a whole input."""
        attrs = self.node.attrs
        is_condition = self.node.op in ("SelectV2", "Select") and k == 0
        is_bool = is_condition or self.node.op in ("LogicalAnd", "LogicalOr")
        dtype = BOOL if is_bool else attrs.get("T", attrs.get("dtype"))
        assert isinstance(dtype, DType)
        return Swap(use=PartUse.SLICE, dtype=dtype, shape=self.facts[k].shape or (), axis=axis)


Rule: TypeAlias = Callable[[Operands], RuleOutcome | None]
"""Outcome of an operation; None if it is neither elementwise nor row-local."""


def apply_rule(x: Operands) -> RuleOutcome:
    """Apply the rule of an operation.

    Raises:
        NotLocalError: parts cannot compute it independently.
    """
    rule = RULES.get(x.node.op)
    outcome = None if rule is None else rule(x)
    if outcome is None:
        raise x.refused("it is neither elementwise nor row-local")
    return outcome


def _read(x: Operands) -> RuleOutcome | None:
    (handle,) = x.facts
    return x.gives(FactKind.SPLIT, handle.shape, handle.axis) if handle.kind is FactKind.HANDLE else None


def _shape_of_handle(x: Operands) -> RuleOutcome:
    (handle,) = x.facts
    if handle.axis:
        raise x.refused("it reads the variable's shape")
    return x.gives(FactKind.LENGTH_SHAPE, handle.shape)


def _assign(x: Operands) -> RuleOutcome | None:
    handle, value = x.facts
    owner = x.owner
    if handle.kind is not FactKind.HANDLE:
        raise x.refused("it assigns to a variable that is not cut with it")
    if value.shape != handle.shape:
        raise x.refused("it assigns another shape")
    if value.kind is FactKind.SPLIT and value.axis == handle.axis:
        return RuleOutcome(outputs=(), variable=owner)
    if value.kind is not FactKind.WHOLE:
        return None
    return RuleOutcome(outputs=(), variable=owner, swaps={1: x.slice(1, handle.axis)})


def _update_in_place(x: Operands) -> RuleOutcome | None:
    owner = x.owner
    parts = [f for f in x.facts if f.kind is not FactKind.WHOLE]
    is_known = all(f.kind in (FactKind.HANDLE, FactKind.SPLIT) for f in parts)
    if not is_known or not x.has_scalars_besides:
        return None
    if len({(f.shape, f.axis) for f in parts}) > 1:
        raise x.refused("its variables and gradient are not cut alike")
    return RuleOutcome(outputs=(), variable=owner)


def _update_rows(x: Operands) -> RuleOutcome | None:
    owner, kinds = x.owner, x.kinds
    tables_cut = all(f.axis == 0 for f in x.facts if f.kind is FactKind.HANDLE)
    allowed = {FactKind.HANDLE, FactKind.IDS, FactKind.ROWS, FactKind.WHOLE}
    is_known = kinds[0] is FactKind.HANDLE and kinds.count(FactKind.IDS) == 1 and allowed.issuperset(kinds)
    return (
        RuleOutcome(outputs=(), variable=owner) if is_known and tables_cut and x.has_scalars_besides else None
    )


def _elementwise(x: Operands) -> RuleOutcome | None:
    """Elementwise ops on ranges of one length, and on whole tensors that are broadcast or sliced."""
    owner_of(x.facts)
    shape = broadcast([f.shape for f in x.facts])
    if shape is None:
        raise x.refused("it reads a tensor of unknown shape")
    parts = [f for f in x.facts if f.kind is not FactKind.WHOLE]
    if all(f.kind is FactKind.ROWS for f in parts):
        is_rowwise = all(_is_one(f, len(shape)) for f in x.facts if f.kind is FactKind.WHOLE)
        return x.gives(FactKind.ROWS, shape) if is_rowwise else None
    if any(f.kind is not FactKind.SPLIT for f in parts):
        return None
    from_end = {len(f.shape or ()) - f.axis for f in parts}
    if len(from_end) > 1:
        raise x.refused("it combines ranges along different axes")
    back = from_end.pop()
    if any((f.shape or ())[f.axis] != shape[-back] for f in parts):
        raise x.refused("it changes the length along the axis")
    swaps = {}
    for k, fact in enumerate(x.facts):
        dims = fact.shape or ()
        if fact.kind is FactKind.WHOLE and len(dims) >= back and dims[-back] != 1:
            if dims[-back] != shape[-back]:
                raise x.refused("it reads a tensor of unknown shape")
            swaps[k] = x.slice(k, len(dims) - back)
    return x.gives(FactKind.SPLIT, shape, len(shape) - back, swaps)


def _is_one(fact: Fact, rank: int) -> bool:
    """True if a whole tensor is broadcast along axis 0 of a tensor of this rank."""
    return fact.shape is not None and (len(fact.shape) < rank or fact.shape[0] == 1)


def _arithmetic(x: Operands) -> RuleOutcome | None:
    """Elementwise ops on lists and counts; otherwise on ranges and rows."""
    first, op = x.facts[0], x.node.op
    if op in _KEEP_KIND and first.kind not in (FactKind.SPLIT, FactKind.ROWS):
        return RuleOutcome(outputs=(first,), variable=x.owner)
    if op == "Equal" and x.kinds == (FactKind.COUNT, FactKind.COUNT):
        return x.gives(FactKind.SAME_COUNT, ())
    if op == "ZerosLike" and first.kind is FactKind.ZERO_ROW:
        return x.gives(FactKind.ZERO_ROW, first.shape)
    if first.kind in _SHIFTED.get(op, ()) and x.kinds[1:] == (FactKind.WHOLE,) and x.facts[1].shape == ():
        return x.gives(first.kind, first.shape)
    return _elementwise(x)


def _select(x: Operands) -> RuleOutcome | None:
    """The old `Select`: its condition is a scalar, a vector for axis 0, or has the operands' shape."""
    condition, one, other = x.facts
    is_plain = one.shape == other.shape and condition.shape in ((), one.shape)
    return _elementwise(x) if is_plain else None


def _reduction(x: Operands) -> RuleOutcome | None:
    """Reductions: over the cut axis parts' results are combined, over other axes each part has its own."""
    owner = x.owner
    tensor, axes = x.facts
    if tensor.kind not in (FactKind.SPLIT, FactKind.ROWS) or tensor.shape is None:
        return None
    over = reduced_axes(len(tensor.shape), axes)
    if over is None:
        raise x.refused("the axes of its reduction are not known")
    axis = tensor.axis if tensor.kind is FactKind.SPLIT else 0
    shape = reduced_shape(x.node, tensor.shape, axes)
    if axis in over:
        return RuleOutcome(outputs=(whole(shape),), variable=owner, combine=REDUCTIONS[x.node.op])
    shift = 0 if x.node.attrs.get("keep_dims") else sum(a < axis for a in over)
    return x.gives(tensor.kind, shape, axis - shift)


def _half_sum_of_squares(x: Operands) -> RuleOutcome | None:
    if x.kinds[0] not in (FactKind.SPLIT, FactKind.ROWS):
        return None
    return RuleOutcome(outputs=(whole(()),), variable=x.owner, combine="add")


def _unique(x: Operands) -> RuleOutcome | None:
    owner = x.owner
    outputs = tuple(
        Fact(kind=kind, shape=(-1,), variable=owner) for kind in (FactKind.IDS, FactKind.POSITIONS)
    )
    return RuleOutcome(outputs=outputs, variable=owner) if x.kinds[0] is FactKind.IDS else None


def _size(x: Operands) -> RuleOutcome | None:
    return x.gives(FactKind.COUNT, ()) if x.kinds[0] in _LISTS else None


def _shape(x: Operands) -> RuleOutcome | None:
    (fact,) = x.facts
    if fact.kind in (*_LISTS, FactKind.ROWS) and fact.shape is not None:
        return x.gives(FactKind.COUNT_SHAPE, fact.shape)
    is_range = fact.kind is FactKind.SPLIT and fact.axis == 0 and fact.shape is not None
    return x.gives(FactKind.LENGTH_SHAPE, fact.shape) if is_range else None


def _strided_slice(x: Operands) -> RuleOutcome | None:
    fact, begin, end, strides = x.facts
    item = sliced_item(x.node, x.facts)
    if fact.kind is FactKind.COUNT_SHAPE and item == 0:
        return x.gives(FactKind.COUNT, ())
    if fact.kind is FactKind.LENGTH_SHAPE and item == 0:
        return x.gives(FactKind.LENGTH, fact.shape[:1] if fact.shape else None)
    masks = [x.node.attrs.get(f"{n}_mask", 0) for n in ("ellipsis", "new_axis", "shrink_axis", "end")]
    takes_first = (begin.values, end.values, strides.values) == ((0,), (1,), (1,))
    if fact.kind is not FactKind.ROWS or not takes_first or any(masks):
        return None
    return x.gives(FactKind.ZERO_ROW, None if fact.shape is None else (1, *fact.shape[1:]))


def _expand(x: Operands) -> RuleOutcome | None:
    is_column = x.kinds[0] is FactKind.IDS and x.facts[1].values in ((1,), (-1,))
    return x.gives(FactKind.ID_COLUMN, (-1, 1)) if is_column else None


def _squeeze(x: Operands) -> RuleOutcome | None:
    is_column = x.kinds[0] is FactKind.ID_COLUMN and x.node.attrs.get("squeeze_dims") in ((1,), (-1,))
    return x.gives(FactKind.IDS, (-1,)) if is_column else None


def _where(x: Operands) -> RuleOutcome | None:
    (fact,) = x.facts
    is_vector = fact.kind is FactKind.SPLIT and fact.shape == x.length and fact.axis == 0
    return x.gives(FactKind.ID_COLUMN, (-1, 1)) if is_vector else None


def _pack(x: Operands) -> RuleOutcome | None:
    """Packed shapes, whose other dimensions are whole."""
    first, *others = x.facts
    kinds = {FactKind.COUNT: FactKind.COUNT_SHAPE, FactKind.LENGTH: FactKind.LENGTH_SHAPE}
    if first.kind not in kinds or any(f.kind is not FactKind.WHOLE or not f.values for f in others):
        return None
    trailing = tuple(f.values[0] for f in others if f.values)
    length = (-1,) if first.kind is FactKind.COUNT else first.shape or (-1,)
    return x.gives(kinds[first.kind], (*length, *trailing))


def _fill(x: Operands) -> RuleOutcome | None:
    shape, value = x.facts
    kinds = {FactKind.COUNT_SHAPE: FactKind.ROWS, FactKind.LENGTH_SHAPE: FactKind.SPLIT}
    if value.kind is not FactKind.WHOLE or shape.kind not in kinds:
        return None
    return x.gives(kinds[shape.kind], shape.shape)


def _scatter(x: Operands) -> RuleOutcome | None:
    """Scatter of rows into a tensor of zeros."""
    ids, rows, shape = x.facts
    length = x.length
    is_dense = shape.kind is FactKind.LENGTH_SHAPE and (shape.shape or ())[:1] == length
    if ids.kind is not FactKind.ID_COLUMN or not is_dense:
        return None
    if rows.kind is FactKind.POSITIONS:
        return x.gives(FactKind.POSITION_TABLE, length)
    return x.gives(FactKind.SPLIT, shape.shape) if rows.kind is FactKind.ROWS else None


def _range(x: Operands) -> RuleOutcome | None:
    is_count = x.kinds == (FactKind.WHOLE, FactKind.COUNT, FactKind.WHOLE)
    return x.gives(FactKind.POSITIONS, (-1,)) if is_count else None


def _concat(x: Operands) -> RuleOutcome | None:
    *rows, axis = x.facts
    is_padded = x.kinds[:-1] == (FactKind.ZERO_ROW, FactKind.ROWS) and axis.values == (0,)
    return x.gives(FactKind.ROWS, rows[1].shape) if is_padded else None


def _gather(x: Operands) -> RuleOutcome | None:
    table, ids, axis = x.facts
    if axis.values != (0,) or x.node.attrs.get("batch_dims", 0) != 0:
        return None
    length, shape = x.length, table.shape or ()
    kinds = (table.kind, ids.kind)
    if kinds == (FactKind.SPLIT, FactKind.IDS) and table.axis == 0 and shape[:1] == length:
        return x.gives(FactKind.ROWS, (-1, *shape[1:]))
    if kinds == (FactKind.POSITION_TABLE, FactKind.IDS):
        return x.gives(FactKind.POSITIONS, (-1,))
    return x.gives(FactKind.ROWS, table.shape) if kinds == (FactKind.ROWS, FactKind.POSITIONS) else None


def _segments(x: Operands) -> RuleOutcome | None:
    """Merge rows of equal ids, or make them dense."""
    rows, ids, number = x.facts
    shape, axis = x.tables[x.owner]
    if rows.kind is not FactKind.ROWS or rows.shape is None:
        return None
    if (ids.kind, number.kind) == (FactKind.POSITIONS, FactKind.COUNT):
        return x.gives(FactKind.ROWS, rows.shape)
    if ids.kind is not FactKind.IDS or axis:
        return None
    dense = (shape[0], *rows.shape[1:])
    if number.kind is FactKind.LENGTH and number.shape == shape[:1]:
        return x.gives(FactKind.SPLIT, dense)
    if number.kind is not FactKind.WHOLE or number.values != shape[:1]:
        return None
    dtype = x.node.attrs.get("Tnumsegments", DType("int32"))
    assert isinstance(dtype, DType)
    return x.gives(FactKind.SPLIT, dense, swaps={2: Swap(use=PartUse.LENGTH, dtype=dtype)})


def _lookup(x: Operands) -> RuleOutcome | None:
    handle = x.facts[0]
    is_row_lookup = x.kinds == (FactKind.HANDLE, FactKind.IDS) and not handle.axis
    if not is_row_lookup or x.node.attrs.get("batch_dims", 0) != 0:
        return None
    return x.gives(FactKind.ROWS, (-1, *(handle.shape or ())[1:]))


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(_KEEP_KIND | _SHIFTED.keys() | {"Equal", "ZerosLike"}, _arithmetic),
    **dict.fromkeys(ASSIGNMENTS, _assign),
    **dict.fromkeys(DENSE_UPDATES, _update_in_place),
    **dict.fromkeys(SCATTERS | SPARSE_UPDATES, _update_rows),
    **dict.fromkeys(REDUCTIONS, _reduction),
    **dict.fromkeys(op_set("Unique UniqueV2"), _unique),
    **dict.fromkeys(
        op_set("UnsortedSegmentSum UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd"), _segments
    ),
    "ConcatV2": _concat,
    "ExpandDims": _expand,
    "Fill": _fill,
    "GatherV2": _gather,
    "L2Loss": _half_sum_of_squares,
    "Pack": _pack,
    "Range": _range,
    "ReadVariableOp": _read,
    "ResourceGather": _lookup,
    "ScatterNd": _scatter,
    "Select": _select,
    "Shape": _shape,
    "Size": _size,
    "Squeeze": _squeeze,
    "StridedSlice": _strided_slice,
    "VariableShape": _shape_of_handle,
    "Where": _where,
}
