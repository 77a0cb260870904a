"""Rules of placement: where a node may have its variable, and how that may be cut and its parts be placed."""

from collections.abc import Mapping

from strategies.ir.ranges import part_name
from strategies.plan.schema import Partition, PlanNode
from strategies.planning.node_in_plan import NodeInPlan
from strategies.topology import UPDATER

_WHOLE = "keep it whole with `partition: null`"


def check_placement(checked: NodeInPlan) -> None:
    """Check where a node has its variable, or each part of it.

    Raises:
        StrategyError: for the first rule that it breaks.
    """
    if checked.node.partition is None:
        _place(checked)
    else:
        _cut(checked, checked.node.partition)
        _places_of_parts(checked, checked.node.partition)
    if checked.owner is not None:
        _with_owner(checked, checked.owner)


def _place(checked: NodeInPlan) -> None:
    node = checked.node
    if checked.served:
        _destination(checked, node.destination, "destination")
        if checked.v.kind == "slot" and checked.v.slot_of is None and node.destination != UPDATER:
            checked.fail(
                f"what all updates share must be on task {UPDATER}", node.destination, f"use {UPDATER}"
            )
    elif node.destination is not None:
        checked.fail(
            "every replica has its own, so destination must be null", node.destination, "set it to null"
        )
    in_bucket = checked.in_bucket
    if in_bucket and (node.group is None or node.group < 0):
        checked.fail("group must be the number of its bucket", node.group, "give one from 0")
    if not in_bucket and node.group is not None:
        checked.fail(
            "only what collectives sum or transport tcp moves has a bucket, so group must be null",
            node.group,
            "set it to null",
        )


def _destination(checked: NodeInPlan, task: int | None, field: str) -> None:
    if task is None or not 0 <= task < checked.n_tasks:
        checked.fail(
            f"{field} must be a task from 0 to {checked.n_tasks - 1}", task, "choose one or add workers"
        )


def _cut(checked: NodeInPlan, partition: Partition) -> None:
    v = checked.v
    if v.kind == "state" or (checked.owner is None and not v.synced):
        checked.fail("only trainables that a gradient reaches have parts, with their slots", v.kind, _WHOLE)
    if not 0 <= partition.axis < len(v.shape):
        checked.fail(f"partition.axis must be an axis of shape {v.shape}", partition.axis, _WHOLE)
    length, sizes = v.shape[partition.axis], partition.sizes
    if len(sizes) > length:
        checked.fail(
            f"partition: axis {partition.axis} has {length} rows, one for each part at least",
            f"{len(sizes)} parts",
            "use fewer shards",
        )
    if len(sizes) < 2 or min(sizes) < 1 or sum(sizes) != length:
        checked.fail(
            f"partition.sizes must be two or more, each at least 1, that add up to {length}",
            f"{list(sizes)}, which add up to {sum(sizes)}",
            f"change them or {_WHOLE}",
        )
    if checked.owner is None and partition.axis not in v.partitionable_axes:
        able = ", ".join(map(str, v.partitionable_axes))
        reason = v.cut_refusals.get(partition.axis)
        checked.fail(
            "a cut needs an update that is elementwise or row-local along its axis, and no use of the "
            "variable in control flow",
            f"axis {partition.axis}, along which it cannot be cut" + (f" ({reason})" if reason else ""),
            f"use axis {able}" if able else _WHOLE,
        )
    for k in range(len(sizes)):
        if part_name(v.name, k) in checked.names:
            checked.fail(
                "its parts need names of their own",
                f"a variable {part_name(v.name, k)!r}",
                "rename that one",
            )


def _places_of_parts(checked: NodeInPlan, partition: Partition) -> None:
    n = len(partition.sizes)
    for field in ("destination", "group"):
        if getattr(checked.node, field) is not None:
            checked.fail(
                f"{field} must be null where parts have {field}s", getattr(checked.node, field), "drop it"
            )
    for field, needed in (("destinations", checked.served), ("groups", checked.in_bucket)):
        given: tuple[int, ...] | None = getattr(partition, field)
        if needed and (given is None or len(given) != n):
            checked.fail(
                f"partition.{field} needs one for each of {n} sizes",
                0 if given is None else len(given),
                "add or drop some",
            )
        if not needed and given is not None:
            checked.fail(f"partition.{field} must be null under its synchronizer", list(given), "drop it")
    for task in partition.destinations or ():
        _destination(checked, task, "partition.destinations")
    if min(partition.groups or (0,)) < 0:
        checked.fail(
            "partition.groups must be numbers of buckets, from 0",
            min(partition.groups or ()),
            "change it",
        )


def _with_owner(checked: NodeInPlan, owner: PlanNode) -> None:
    """A slot lives where its variable does, and is cut as it is if it has its shape."""
    alike = checked.v.shape == owner.shape
    cut, of_owner = _cut_of(checked.node), _cut_of(owner)
    if cut != of_owner and (alike or cut is not None):
        rule = (
            f"a slot is cut like {owner.variable!r}, {of_owner}"
            if alike
            else "a slot of another shape is whole"
        )
        checked.fail(rule, cut, "give it the same partition" if alike else _WHOLE)
    if owner.partition is None and checked.node.destination != owner.destination:
        checked.fail(
            f"a slot must be where {owner.variable!r} is, on task {owner.destination}",
            checked.node.destination,
            "give it the same destination",
        )


def _cut_of(node: PlanNode) -> Mapping[str, object] | None:
    """Where a node's parts begin, end and live; None where it is whole."""
    return (
        None if node.partition is None else node.partition.model_dump(exclude={"groups"}, exclude_none=True)
    )
