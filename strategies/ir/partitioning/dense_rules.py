"""Rules that carry ops on ranges of tensors over to the parts: elementwise ones, updates, reductions."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from strategies.ir.graph import DType, Node
from strategies.ir.partitioning.constants import reduced_axes, reduced_shape, whole
from strategies.ir.partitioning.elementwise_ops import (
    ASSIGNMENTS,
    DENSE_UPDATES,
    ELEMENTWISE,
    REDUCTIONS,
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
)

Tables: TypeAlias = Mapping[str, tuple[tuple[int, ...], int]]
"""Variable → its shape and the axis along which it is cut."""
Rule: TypeAlias = Callable[[Node, Sequence[Fact], Tables], RuleOutcome]
BOOL = DType("bool")


def refuse(facts: Sequence[Fact], reason: str = "it is neither elementwise nor row-local") -> NotLocalError:
    """What a rule raises for inputs that it does not take."""
    return NotLocalError(reason, sorted({f.variable for f in facts if f.variable is not None}))


def read(node: Node, facts: Sequence[Fact], tables: Tables) -> RuleOutcome:
    """Of a variable: the part's value."""
    (handle,) = facts
    if handle.kind is not FactKind.HANDLE:
        raise refuse(facts)
    return RuleOutcome(outputs=(_split(handle, handle.shape, handle.axis),), variable=owner_of(facts))


def shape_of_handle(node: Node, facts: Sequence[Fact], tables: Tables) -> RuleOutcome:
    """Of a variable: the part's shape, which later rules follow."""
    (handle,) = facts
    owner = owner_of(facts)
    if handle.axis:
        raise refuse(facts, "it reads the variable's shape")
    output = Fact(kind=FactKind.LENGTH_SHAPE, shape=handle.shape, variable=owner)
    return RuleOutcome(outputs=(output,), variable=owner)


def assign(node: Node, facts: Sequence[Fact], tables: Tables) -> RuleOutcome:
    """A new value, or what is added to it, in the variable's shape."""
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
    """An optimizer's own op on variables, scalars and a dense gradient."""
    owner = owner_of(facts)
    for fact in facts:
        scalar = fact.kind is FactKind.WHOLE and fact.shape in (None, ())
        if not scalar and fact.kind not in (FactKind.HANDLE, FactKind.SPLIT):
            raise refuse(facts)
    if len({(f.shape, f.axis) for f in facts if f.kind is not FactKind.WHOLE}) > 1:
        raise refuse(facts, "its variables and gradient are not cut alike")
    return RuleOutcome(outputs=(), variable=owner)


def elementwise(node: Node, facts: Sequence[Fact], tables: Tables) -> RuleOutcome:
    """Ranges of one length, and whole tensors that are broadcast or sliced along the axis."""
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
    """Whether a whole tensor is broadcast along axis 0 of a tensor of this rank."""
    return fact.shape is not None and (len(fact.shape) < rank or fact.shape[0] == 1)


def select(node: Node, facts: Sequence[Fact], tables: Tables) -> RuleOutcome:
    """The old `Select`: its condition is a scalar, a vector for axis 0, or has the shape of both others."""
    condition, one, other = facts
    if one.shape != other.shape or condition.shape not in ((), one.shape):
        raise refuse(facts)
    return elementwise(node, facts, tables)


def reduction(node: Node, facts: Sequence[Fact], tables: Tables) -> RuleOutcome:
    """Over the axis of the parts: theirs combined. Over others: each part's own."""
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
    """Adds up over parts."""
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
