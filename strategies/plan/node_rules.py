"""A node in its plan: what its variable is, what the nodes beside it say, and how it is refused."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from strategies.errors import StrategyError, suggestion
from strategies.ir.variable import part_name
from strategies.plan import compressors
from strategies.plan.schema import BY_RULE, Compression, Partition, PlanNode, StepSummary, VariableSummary
from strategies.topology import UPDATER, Topology

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


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInPlan:
    """One node and what it must agree with.

    Attributes:
        where: begins the error line.
        owner: node of the variable whose slot this is.
        synchronizers: of all variables that cross replicas.
        names: of all variables.
    """

    where: str
    v: VariableSummary
    node: PlanNode
    owner: PlanNode | None
    synchronizers: frozenset[str]
    topology: Topology
    names: frozenset[str]

    @property
    def n_tasks(self) -> int:
        """How many tasks may serve."""
        return self.topology.n_tasks

    def fail(self, rule: str, got: object, way_out: str) -> NoReturn:
        """Refuse the node.

        Raises:
            StrategyError: always; one line with the variable, the rule, what was received and the way out.
        """
        raise StrategyError(f"{self.where}: variable {self.v.name!r}: {rule}, got {got}; {way_out}")

    @property
    def served(self) -> bool:
        """Whether it lives on a server: what replicas share does, where there are servers.

        Beside collectives, what no gradient or new state reaches may be either, a slot as its variable is; so
        may what no step changes.
        """
        if self.v.synced or "ps" not in self.synchronizers:
            return self.node.synchronizer == "ps"
        if self.v.rule == "per-replica":
            return False
        always = self.synchronizers == {"ps"} and not self.v.only_read
        return always or _is_served(self.owner or self.node)

    @property
    def reduced(self) -> bool:
        """Whether it takes part in collectives."""
        return self.v.synced and self.node.synchronizer not in ("ps", "none", "cross-replica-sum")

    @property
    def in_bucket(self) -> bool:
        """Whether it travels with others: all but rows that TensorFlow's collectives gather.

        Averages and new values from owners are dense whatever gradients are.
        """
        dense = not self.v.sparse or self.node.synchronizer == "average" or is_owned(self.node)
        by_rule = self.node.synchronizer in BY_RULE
        return self.reduced and not by_rule and (dense or self.node.transport == "tcp")


def _is_served(node: PlanNode) -> bool:
    return node.destination is not None or (
        node.partition is not None and node.partition.destinations is not None
    )


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


_TOGETHER = (
    {"all-reduce", "average"},
    {"ps", "all-reduce"},
    {"ps", "hierarchical-all-reduce"},
    {"robust-gather", "hierarchical-all-reduce"},
    {"robust-servers", "hierarchical-all-reduce"},
)


def check_nodes(nodes: Sequence[PlanNode], step: StepSummary, topology: Topology, *, where: str) -> None:
    """Check that nodes are a plan of a step on a topology.

    Args:
        where: begins the error line.
    Raises:
        StrategyError: for the first that is wrong.
    """
    by_name: dict[str, PlanNode] = {}
    known = [v.name for v in step.variables]
    for node in nodes:
        if node.variable not in known:
            raise StrategyError(
                f"{where}: variable {node.variable!r}: must be one of the step's, got none of that name; "
                f"{suggestion(node.variable, known)}"
            )
        if node.variable in by_name:
            raise StrategyError(f"{where}: variable {node.variable!r}: needs one node, got two; drop one")
        by_name[node.variable] = node
    missing = [v.name for v in step.variables if v.name not in by_name]
    if missing:
        raise StrategyError(
            f"{where}: variable {missing[0]!r}: needs a node, got none; add one, every variable has its own"
        )
    synchronizers = {by_name[v.name].synchronizer for v in step.variables if v.synced}
    for v in step.variables:
        _check(
            NodeInPlan(
                where=where,
                v=v,
                node=by_name[v.name],
                owner=None if v.slot_of is None else by_name.get(v.slot_of),
                synchronizers=frozenset(synchronizers),
                topology=topology,
                names=frozenset(known),
            )
        )


def _check(checked: NodeInPlan) -> None:
    """Check all rules, what others build on first."""
    _facts(checked)
    _synchronizer(checked)
    check_placement(checked)
    _proxy(checked)
    _transport(checked)
    _on_cores(checked)
    wrong = ownership_mistake(checked.v, checked.node, checked.owner, checked.topology.n_replicas)
    if wrong is not None:
        checked.fail(*wrong)
    if is_owned(checked.node) and "ps" in checked.synchronizers:
        checked.fail("an owner needs a plan without servers", "one with", "set owner to null")
    if checked.node.compressor is not None:
        _compressor(checked, checked.node.compressor)


def _facts(checked: NodeInPlan) -> None:
    for fact in ("shape", "dtype", "bytes", "sparse"):
        captured, got = getattr(checked.v, fact), getattr(checked.node, fact)
        if captured != got:
            checked.fail(
                f"{fact} must be the captured one, {captured}",
                got,
                "take it from a plan of this workload",
            )


def _synchronizer(checked: NodeInPlan) -> None:
    got = checked.node.synchronizer
    if not checked.v.synced:
        if got != "none":
            checked.fail(
                "nothing of it crosses replicas, so synchronizer must be none", got, "set it to none"
            )
    elif len(checked.synchronizers) > 1 and checked.synchronizers not in _TOGETHER:
        checked.fail(
            "synchronizers must be one, or all-reduce and average, or an all-reduce beside ps or a rule",
            ", ".join(sorted(checked.synchronizers)),
            "choose among those",
        )
    elif got == "average" and checked.v.rule == "sum":
        checked.fail("what replicas add up has no average", "synchronizer average", "make it all-reduce")


def _proxy(checked: NodeInPlan) -> None:
    if checked.node.proxy and (checked.node.synchronizer != "ps" or checked.v.sparse):
        what = "a sparse gradient" if checked.v.sparse else f"synchronizer {checked.node.synchronizer}"
        checked.fail("a proxy copies a dense variable from its server", what, "set proxy to false")


def _transport(checked: NodeInPlan) -> None:
    transport = checked.node.transport
    if transport is None:
        return
    if not checked.reduced or checked.node.synchronizer in ("average", *BY_RULE):
        checked.fail("transport is for gradients of collectives", transport, "set it to null")
    if checked.v.sparse and not is_owned(checked.node) and transport != "tcp":
        checked.fail("transport of rows is tcp, or null for TensorFlow's", transport, "use one of these")
    if transport == "tcp" and checked.n_tasks < 2:
        checked.fail("transport tcp needs two workers", "one", "use auto")
    if transport == "nccl" and checked.topology.nccl_mistake is not None:
        need, received = checked.topology.nccl_mistake
        checked.fail(f"transport nccl needs {need}", received, "use auto")
    if transport == "nccl" and is_owned(checked.node):
        checked.fail("transport nccl takes sums that all begin in one order", "an owner", "use auto")
    if transport == "tcp" and "ps" in checked.synchronizers:
        # On one core that is the only one, and another worker's step may need it to read here.
        checked.fail("transport tcp waits on a thread that servers need", "ps beside it", "use auto")
    compressor = checked.node.compressor
    if transport == "tcp" and compressor is not None and not compressors.on_own_transport(compressor.name):
        checked.fail(
            "transport tcp does not add up half precision",
            f"compressor {compressor.name}",
            "use auto",
        )


def _on_cores(checked: NodeInPlan) -> None:
    """Rules of cores, which run one program: what it takes is the same for all variables and replicas."""
    v, node = checked.v, checked.node
    on_cores = "cross-replica-sum" in checked.synchronizers
    if node.in_parts:
        if not on_cores:
            checked.fail("only what cores keep lies in parts", "in_parts true", "set it to false")
        if not v.can_lie_in_parts(checked.topology.n_replicas):
            checked.fail(
                "in parts lies what replicas have alike, of a type that is gathered, a value for each",
                f"{v.dtype}{list(v.shape)}",
                "set in_parts to false",
            )
    if not on_cores:
        return
    if node.partition is not None:
        checked.fail("on cores parts are equal and come by in_parts", "a partition", "set it to null")


def _compressor(checked: NodeInPlan, compression: Compression) -> None:
    v, way_out = checked.v, "set compressor to null"
    stays = checked.node.synchronizer in ("none", "average", "cross-replica-sum", *BY_RULE)
    if v.kind != "trainable" or stays:
        what = f"synchronizer {checked.node.synchronizer}" if stays else v.rule or v.kind
        checked.fail("a compressor is for a gradient that crosses replicas", what, way_out)
    if v.sparse or v.dtype not in compressors.FLOATING or -1 in v.shape:
        what = "rows of a sparse gradient" if v.sparse else f"{v.dtype} of shape {v.shape}"
        checked.fail("a compressor takes dense floating gradients", what, way_out)
    try:
        compressors.check(compression)
    except StrategyError as error:
        raise StrategyError(f"{checked.where}: variable {v.name!r}: {error}") from None
    if compressors.BY_NAME[compression.name].matrices and len(v.shape) < 2:
        checked.fail(f"{compression.name} takes two axes or more", f"shape {v.shape}", way_out)
