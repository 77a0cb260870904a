"""Rules that apply an operation to the parts of a variable, its gradient and its rows.

A part holds the rows whose ids lie in its range, with ids counted from its start. An op on rows follows a
part if it needs no row of another: elementwise, by id (gather, scatter, merge), or dense in the part's
length. Counts of rows serve as shapes and in comparisons of two lists.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from strategies.ir.graph import DType, Node
from strategies.ir.ops import ASSIGNMENTS, DENSE_UPDATES, ELEMENTWISE, REDUCTIONS, SCATTERS, SPARSE_UPDATES
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
Rule: TypeAlias = Callable[[Node, Sequence[Fact], Tables], RuleOutcome]
BOOL = DType("bool")


def refuse(facts: Sequence[Fact], reason: str = "it is neither elementwise nor row-local") -> NotLocalError:
    """Error for inputs that a rule does not take."""
    return NotLocalError(reason, sorted({f.variable for f in facts if f.variable is not None}))


def read(node: Node, facts: Sequence[Fact], tables: Tables) -> RuleOutcome:
    """Read a part."""
    (handle,) = facts
    if handle.kind is not FactKind.HANDLE:
        raise refuse(facts)
    return RuleOutcome(outputs=(_split(handle, handle.shape, handle.axis),), variable=owner_of(facts))


def shape_of_handle(node: Node, facts: Sequence[Fact], tables: Tables) -> RuleOutcome:
    """Shape of a part."""
    (handle,) = facts
    owner = owner_of(facts)
    if handle.axis:
        raise refuse(facts, "it reads the variable's shape")
    output = Fact(kind=FactKind.LENGTH_SHAPE, shape=handle.shape, variable=owner)
    return RuleOutcome(outputs=(output,), variable=owner)


def assign(node: Node, facts: Sequence[Fact], tables: Tables) -> RuleOutcome:
    """Assign a value of the variable's shape, or add it."""
    handle, value = facts
    owner = owner_of(facts)
    if handle.kind is not FactKind.HANDLE:
        raise refuse(facts, "it assigns to a variable that is not cut with it")
    if value.shape != handle.shape:
        raise refuse(facts, "it assigns another shape")
    if value.kind is FactKind.SPLIT and value.axis == handle.axis:
        return RuleOutcome(outputs=(), variable=owner)
    if value.kind is not FactKind.WHOLE:
        raise refuse(facts)
    return RuleOutcome(outputs=(), variable=owner, swaps={1: _slice(node, 1, value, handle.axis)})


def update_in_place(node: Node, facts: Sequence[Fact], tables: Tables) -> RuleOutcome:
    """Apply an optimizer's fused op on variables, scalars and a dense gradient."""
    owner = owner_of(facts)
    for fact in facts:
        scalar = fact.kind is FactKind.WHOLE and fact.shape in (None, ())
        if not scalar and fact.kind not in (FactKind.HANDLE, FactKind.SPLIT):
            raise refuse(facts)
    if len({(f.shape, f.axis) for f in facts if f.kind is not FactKind.WHOLE}) > 1:
        raise refuse(facts, "its variables and gradient are not cut alike")
    return RuleOutcome(outputs=(), variable=owner)


def elementwise(node: Node, facts: Sequence[Fact], tables: Tables) -> RuleOutcome:
    """Combine ranges of one length with whole tensors, broadcast or sliced along the axis."""
    owner = owner_of(facts)
    shape = broadcast([f.shape for f in facts])
    if shape is None:
        raise refuse(facts, "it reads a tensor of unknown shape")
    parts = [f for f in facts if f.kind is not FactKind.WHOLE]
    if all(f.kind is FactKind.ROWS for f in parts):
        if any(not _is_one(f, len(shape)) for f in facts if f.kind is FactKind.WHOLE):
            raise refuse(facts)
        return RuleOutcome(outputs=(Fact(kind=FactKind.ROWS, shape=shape, variable=owner),), variable=owner)
    if any(f.kind is not FactKind.SPLIT for f in parts):
        raise refuse(facts)
    from_end = {len(f.shape or ()) - f.axis for f in parts}
    if len(from_end) > 1:
        raise refuse(facts, "it combines ranges along different axes")
    back = from_end.pop()
    if any((f.shape or ())[f.axis] != shape[-back] for f in parts):
        raise refuse(facts, "it changes the length along the axis")
    swaps = {}
    for k, fact in enumerate(facts):
        dims = fact.shape or ()
        if fact.kind is FactKind.WHOLE and len(dims) >= back and dims[-back] != 1:
            if dims[-back] != shape[-back]:
                raise refuse(facts, "it reads a tensor of unknown shape")
            swaps[k] = _slice(node, k, fact, len(dims) - back)
    output = Fact(kind=FactKind.SPLIT, shape=shape, axis=len(shape) - back, variable=owner)
    return RuleOutcome(outputs=(output,), variable=owner, swaps=swaps)


def _is_one(fact: Fact, rank: int) -> bool:
    return fact.shape is not None and (len(fact.shape) < rank or fact.shape[0] == 1)


def select(node: Node, facts: Sequence[Fact], tables: Tables) -> RuleOutcome:
    """Apply the old `Select`, with a condition that is a scalar or has the operands' shape."""
    condition, one, other = facts
    if one.shape != other.shape or condition.shape not in ((), one.shape):
        raise refuse(facts)
    return elementwise(node, facts, tables)


def reduction(node: Node, facts: Sequence[Fact], tables: Tables) -> RuleOutcome:
    """Reduce over the parts' axis (combined) or over others (per part)."""
    owner = owner_of(facts)
    tensor, axes = facts
    if tensor.kind not in (FactKind.SPLIT, FactKind.ROWS) or tensor.shape is None:
        raise refuse(facts)
    over = reduced_axes(len(tensor.shape), axes)
    if over is None:
        raise refuse(facts, "the axes of its reduction are not known")
    axis = tensor.axis if tensor.kind is FactKind.SPLIT else 0
    shape = reduced_shape(node, tensor.shape, axes)
    if axis in over:
        return RuleOutcome(outputs=(whole(shape),), variable=owner, combine=REDUCTIONS[node.op])
    shift = 0 if node.attrs.get("keep_dims") else sum(a < axis for a in over)
    output = Fact(kind=tensor.kind, shape=shape, axis=axis - shift, variable=owner)
    return RuleOutcome(outputs=(output,), variable=owner)


def half_sum_of_squares(node: Node, facts: Sequence[Fact], tables: Tables) -> RuleOutcome:
    """Sum L2Loss over parts."""
    if facts[0].kind not in (FactKind.SPLIT, FactKind.ROWS):
        raise refuse(facts)
    return RuleOutcome(outputs=(whole(()),), variable=owner_of(facts), combine="add")


def _split(like: Fact, shape: tuple[int, ...] | None, axis: int) -> Fact:
    return Fact(kind=FactKind.SPLIT, shape=shape, axis=axis, variable=like.variable)


def _slice(node: Node, k: int, fact: Fact, axis: int) -> Swap:
    dtype = (
        BOOL if node.op in ("SelectV2", "Select") and k == 0 else node.attrs.get("T", node.attrs.get("dtype"))
    )
    if node.op in ("LogicalAnd", "LogicalOr"):
        dtype = BOOL
    assert isinstance(dtype, DType)
    return Swap(use=PartUse.SLICE, dtype=dtype, shape=fact.shape or (), axis=axis)


DENSE_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, elementwise),
    **dict.fromkeys(ASSIGNMENTS, assign),
    **dict.fromkeys(DENSE_UPDATES, update_in_place),
    **dict.fromkeys(REDUCTIONS, reduction),
    "ReadVariableOp": read,
    "VariableShape": shape_of_handle,
    "Select": select,
    "L2Loss": half_sum_of_squares,
}


_KEEPS_KIND = frozenset({"Identity", "Cast", "StopGradient", "Snapshot"})
_SHIFTED = {
    "AddV2": (FactKind.COUNT, FactKind.POSITIONS),
    "Add": (FactKind.COUNT, FactKind.POSITIONS),
    "Sub": (FactKind.COUNT,),
}


def _made(kind: FactKind, facts: Sequence[Fact], shape: tuple[int, ...] | None = None) -> RuleOutcome:
    owner = owner_of(facts)
    return RuleOutcome(outputs=(Fact(kind=kind, shape=shape, variable=owner),), variable=owner)


def _kinds(facts: Sequence[Fact]) -> tuple[FactKind, ...]:
    return tuple(f.kind for f in facts)


def _arithmetic(node: Node, facts: Sequence[Fact], tables: Tables) -> RuleOutcome:
    first = facts[0]
    if node.op in _KEEPS_KIND and first.kind not in (FactKind.SPLIT, FactKind.ROWS):
        return RuleOutcome(outputs=(first,), variable=owner_of(facts))
    if node.op == "Equal" and _kinds(facts) == (FactKind.COUNT, FactKind.COUNT):
        return _made(FactKind.SAME_COUNT, facts, ())
    if node.op == "ZerosLike" and first.kind is FactKind.ZERO_ROW:
        return _made(FactKind.ZERO_ROW, facts, first.shape)
    shifted = _SHIFTED.get(node.op, ())
    if len(facts) == 2 and first.kind in shifted and facts[1].kind is FactKind.WHOLE and facts[1].shape == ():
        return _made(first.kind, facts, first.shape)
    return elementwise(node, facts, tables)


def _unique(node: Node, facts: Sequence[Fact], tables: Tables) -> RuleOutcome:
    owner = owner_of(facts)
    if facts[0].kind is not FactKind.IDS:
        raise refuse(facts)
    outputs = [Fact(kind=kind, shape=(-1,), variable=owner) for kind in (FactKind.IDS, FactKind.POSITIONS)]
    return RuleOutcome(outputs=tuple(outputs), variable=owner)


def _size(node: Node, facts: Sequence[Fact], tables: Tables) -> RuleOutcome:
    if facts[0].kind not in (FactKind.IDS, FactKind.ID_COLUMN, FactKind.POSITIONS):
        raise refuse(facts)
    return _made(FactKind.COUNT, facts, ())


def _shape(node: Node, facts: Sequence[Fact], tables: Tables) -> RuleOutcome:
    (fact,) = facts
    if (
        fact.kind in (FactKind.IDS, FactKind.ID_COLUMN, FactKind.POSITIONS, FactKind.ROWS)
        and fact.shape is not None
    ):
        return _made(FactKind.COUNT_SHAPE, facts, fact.shape)
    if fact.kind is FactKind.SPLIT and fact.axis == 0 and fact.shape is not None:
        return _made(FactKind.LENGTH_SHAPE, facts, fact.shape)
    raise refuse(facts)


def _strided_slice(node: Node, facts: Sequence[Fact], tables: Tables) -> RuleOutcome:
    fact, begin, end, strides = facts
    item = sliced_item(node, facts)
    if fact.kind is FactKind.COUNT_SHAPE and item == 0:
        return _made(FactKind.COUNT, facts, ())
    if fact.kind is FactKind.LENGTH_SHAPE and item == 0:
        return _made(FactKind.LENGTH, facts, fact.shape[:1] if fact.shape else None)
    masks = [node.attrs.get(f"{n}_mask", 0) for n in ("ellipsis", "new_axis", "shrink_axis", "end")]
    takes_first = (begin.values, end.values, strides.values) == ((0,), (1,), (1,))
    if fact.kind is FactKind.ROWS and takes_first and not any(masks):
        shape = None if fact.shape is None else (1, *fact.shape[1:])
        return _made(FactKind.ZERO_ROW, facts, shape)
    raise refuse(facts)


def _expand(node: Node, facts: Sequence[Fact], tables: Tables) -> RuleOutcome:
    if facts[0].kind is FactKind.IDS and facts[1].values in ((1,), (-1,)):
        return _made(FactKind.ID_COLUMN, facts, (-1, 1))
    raise refuse(facts)


def _squeeze(node: Node, facts: Sequence[Fact], tables: Tables) -> RuleOutcome:
    if facts[0].kind is FactKind.ID_COLUMN and node.attrs.get("squeeze_dims") in ((1,), (-1,)):
        return _made(FactKind.IDS, facts, (-1,))
    raise refuse(facts)


def _where(node: Node, facts: Sequence[Fact], tables: Tables) -> RuleOutcome:
    (fact,) = facts
    if fact.kind is FactKind.SPLIT and fact.shape == tables[owner_of(facts)][0][:1] and fact.axis == 0:
        return _made(FactKind.ID_COLUMN, facts, (-1, 1))
    raise refuse(facts)


def _pack(node: Node, facts: Sequence[Fact], tables: Tables) -> RuleOutcome:
    first, *others = facts
    kinds = {FactKind.COUNT: FactKind.COUNT_SHAPE, FactKind.LENGTH: FactKind.LENGTH_SHAPE}
    if first.kind not in kinds or any(f.kind is not FactKind.WHOLE or not f.values for f in others):
        raise refuse(facts)
    trailing = tuple(f.values[0] for f in others if f.values)
    length = (-1,) if first.kind is FactKind.COUNT else first.shape or (-1,)
    return _made(kinds[first.kind], facts, (*length, *trailing))


def _fill(node: Node, facts: Sequence[Fact], tables: Tables) -> RuleOutcome:
    shape, value = facts
    if value.kind is not FactKind.WHOLE:
        raise refuse(facts)
    if shape.kind is FactKind.COUNT_SHAPE:
        return _made(FactKind.ROWS, facts, shape.shape)
    if shape.kind is FactKind.LENGTH_SHAPE:
        return _made(FactKind.SPLIT, facts, shape.shape)
    raise refuse(facts)


def _scatter(node: Node, facts: Sequence[Fact], tables: Tables) -> RuleOutcome:
    ids, rows, shape = facts
    length = tables[owner_of(facts)][0][:1]
    if (
        ids.kind is not FactKind.ID_COLUMN
        or shape.kind is not FactKind.LENGTH_SHAPE
        or (shape.shape or ())[:1] != length
    ):
        raise refuse(facts)
    if rows.kind is FactKind.POSITIONS:
        return _made(FactKind.POSITION_TABLE, facts, length)
    if rows.kind is FactKind.ROWS:
        return _made(FactKind.SPLIT, facts, shape.shape)
    raise refuse(facts)


def _range(node: Node, facts: Sequence[Fact], tables: Tables) -> RuleOutcome:
    if _kinds(facts) == (FactKind.WHOLE, FactKind.COUNT, FactKind.WHOLE):
        return _made(FactKind.POSITIONS, facts, (-1,))
    raise refuse(facts)


def _concat(node: Node, facts: Sequence[Fact], tables: Tables) -> RuleOutcome:
    *rows, axis = facts
    if _kinds(rows) == (FactKind.ZERO_ROW, FactKind.ROWS) and axis.values == (0,):
        return _made(FactKind.ROWS, facts, rows[1].shape)
    raise refuse(facts)


def _gather(node: Node, facts: Sequence[Fact], tables: Tables) -> RuleOutcome:
    table, ids, axis = facts
    if axis.values != (0,) or node.attrs.get("batch_dims", 0) != 0:
        raise refuse(facts)
    length = tables[owner_of(facts)][0][:1]
    shape = table.shape or ()
    if (table.kind, ids.kind, table.axis) == (FactKind.SPLIT, FactKind.IDS, 0) and shape[:1] == length:
        return _made(FactKind.ROWS, facts, (-1, *shape[1:]))
    if (table.kind, ids.kind) == (FactKind.POSITION_TABLE, FactKind.IDS):
        return _made(FactKind.POSITIONS, facts, (-1,))
    if (table.kind, ids.kind) == (FactKind.ROWS, FactKind.POSITIONS):
        return _made(FactKind.ROWS, facts, table.shape)
    raise refuse(facts)


def _segments(node: Node, facts: Sequence[Fact], tables: Tables) -> RuleOutcome:
    rows, ids, number = facts
    owner = owner_of(facts)
    shape, axis = tables[owner]
    if rows.kind is not FactKind.ROWS or rows.shape is None:
        raise refuse(facts)
    if (ids.kind, number.kind) == (FactKind.POSITIONS, FactKind.COUNT):
        return _made(FactKind.ROWS, facts, rows.shape)
    if ids.kind is not FactKind.IDS or axis:
        raise refuse(facts)
    output = Fact(kind=FactKind.SPLIT, shape=(shape[0], *rows.shape[1:]), variable=owner)
    if number.kind is FactKind.LENGTH and number.shape == shape[:1]:
        return RuleOutcome(outputs=(output,), variable=owner)
    if number.kind is FactKind.WHOLE and number.values == shape[:1]:
        dtype = node.attrs.get("Tnumsegments", DType("int32"))
        assert isinstance(dtype, DType)
        return RuleOutcome(
            outputs=(output,), variable=owner, swaps={2: Swap(use=PartUse.LENGTH, dtype=dtype)}
        )
    raise refuse(facts)


def _lookup(node: Node, facts: Sequence[Fact], tables: Tables) -> RuleOutcome:
    handle = facts[0]
    if (
        _kinds(facts) != (FactKind.HANDLE, FactKind.IDS)
        or handle.axis
        or node.attrs.get("batch_dims", 0) != 0
    ):
        raise refuse(facts)
    return _made(FactKind.ROWS, facts, (-1, *(handle.shape or ())[1:]))


def _update_rows(node: Node, facts: Sequence[Fact], tables: Tables) -> RuleOutcome:
    owner = owner_of(facts)
    kinds = _kinds(facts)
    tables_cut = all(f.axis == 0 for f in facts if f.kind is FactKind.HANDLE)
    scalars = all(f.shape in (None, ()) for f in facts if f.kind is FactKind.WHOLE)
    allowed = {FactKind.HANDLE, FactKind.IDS, FactKind.ROWS, FactKind.WHOLE}
    known = kinds[0] is FactKind.HANDLE and kinds.count(FactKind.IDS) == 1 and allowed.issuperset(kinds)
    if not known or not tables_cut or not scalars:
        raise refuse(facts)
    return RuleOutcome(outputs=(), variable=owner)


ROW_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("Identity", "Cast", "StopGradient", "Snapshot", "Equal", "ZerosLike"), _arithmetic),
    **dict.fromkeys(_SHIFTED, _arithmetic),
    **dict.fromkeys(SCATTERS | SPARSE_UPDATES, _update_rows),
    **dict.fromkeys(("Unique", "UniqueV2"), _unique),
    **dict.fromkeys(
        ("UnsortedSegmentSum", "UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd"), _segments
    ),
    "ConcatV2": _concat,
    "ExpandDims": _expand,
    "Fill": _fill,
    "GatherV2": _gather,
    "Pack": _pack,
    "Range": _range,
    "ResourceGather": _lookup,
    "ScatterNd": _scatter,
    "Shape": _shape,
    "Size": _size,
    "Squeeze": _squeeze,
    "StridedSlice": _strided_slice,
    "Where": _where,
}
