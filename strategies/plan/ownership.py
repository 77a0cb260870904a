"""Owners in a plan, and whether they can make the updates: each its share, for all."""

from typing import TypeAlias

from strategies.plan.schema import PlanNode, VariableSummary

Mistake: TypeAlias = tuple[str, object, str]
"""The rule, what was received, and the way out."""
_BY_ALL = "let all replicas update it, with no owner"


def owners_of(node: PlanNode) -> tuple[int, ...]:
    """Ranks of the replicas that own a variable or its parts."""
    if node.partition is not None:
        return node.partition.owners or ()
    return () if node.owner is None else (node.owner,)


def is_owned(node: PlanNode) -> bool:
    """Whether single replicas update a variable or its parts."""
    return bool(owners_of(node))


def ownership_mistake(
    v: VariableSummary, node: PlanNode, trainable: PlanNode | None, n_replicas: int
) -> Mistake | None:
    """What is wrong with the owners of a variable or slot, None if nothing.

    Args:
        trainable: node of the variable whose slot this is.
    """
    if trainable is not None:
        return _slot_mistake(v, node, trainable)
    owners = owners_of(node)
    if node.gathered and not (owners and v.read_before_update):
        what = "one that does" if owners else "a variable without owner"
        return (
            "only an owner's variable that no step reads after its update is gathered",
            what,
            "set gathered to false",
        )
    if not owners:
        whole = node.whole_gradient
        return ("whole_gradient is for a variable with an owner", whole, "set it to false") if whole else None
    return _variable_mistake(v, node) or _place_mistake(v, node, owners, n_replicas)


def _variable_mistake(v: VariableSummary, node: PlanNode) -> Mistake | None:
    """Why no single replica can update a variable."""
    if node.synchronizer != "all-reduce" or v.kind != "trainable":
        return "an owner is for a trainable under all-reduce", f"{v.kind}, {node.synchronizer}", _BY_ALL
    if node.compressor is not None:
        return "a gradient that goes to an owner travels as it is", "a compressor", "set compressor to null"
    if not v.bytes:
        return "an owner is for a variable that has elements", list(v.shape), _BY_ALL
    if not v.apart:
        return "one replica can update it only if no other update reads it", "one that does", _BY_ALL
    if v.gradient_shared and not v.sparse and not node.whole_gradient:
        return "other updates read its gradient, which all must have", False, "set whole_gradient to true"
    return None


def _place_mistake(
    v: VariableSummary, node: PlanNode, owners: tuple[int, ...], n_replicas: int
) -> Mistake | None:
    """Why these cannot be the owners."""
    if not all(0 <= rank < n_replicas for rank in owners):
        return f"an owner must be a replica from 0 to {n_replicas - 1}", list(owners), "choose one"
    if node.partition is None:
        return None
    n = len(node.partition.sizes)
    if node.owner is not None:
        return "owner must be null where parts have owners", node.owner, "drop it"
    if len(owners) != n:
        return f"partition.owners needs one for each of {n} sizes", len(owners), "add or drop some"
    if node.partition.axis not in v.apart_axes and len(set(owners)) > 1:
        return (
            "parts with several owners need an update in which no part reads another",
            f"axis {node.partition.axis}, along which they do",
            "keep it whole with `partition: null`, or give all parts one owner",
        )
    return None


def _slot_mistake(v: VariableSummary, node: PlanNode, trainable: PlanNode) -> Mistake | None:
    owned = owners_of(trainable)
    if v.shape != trainable.shape and trainable.partition is not None and owned:
        return (
            f"a slot of another shape than {trainable.variable!r} has goes with the whole",
            "parts",
            f"keep {trainable.variable!r} whole with `partition: null`",
        )
    if owners_of(node) != owned:
        return (
            f"a slot has the owners of {trainable.variable!r}, {list(owned)}",
            list(owners_of(node)),
            "give it the same",
        )
    return None
