"""Rules of plan nodes: fields that follow from the capture, conditions of the others, and places of parts."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pydantic import BaseModel

from strategies.errors import StrategyError, suggestion
from strategies.ir.variable import part_name
from strategies.plan import compressors
from strategies.plan.schema import BY_RULE, Compression, Partition, PlanNode, StepSummary, VariableSummary
from strategies.topology import UPDATER, Topology

Mistake: TypeAlias = tuple[str, object, str]
"""Rule, received value, and advice."""
_WHOLE = "keep it whole with `partition: null`"


def owners_of(node: PlanNode) -> tuple[int, ...]:
    """Ranks of the replicas that own a variable or its parts."""
    if node.partition is not None:
        return node.partition.owners or ()
    return () if node.owner is None else (node.owner,)


def is_owned(node: PlanNode) -> bool:
    """True if single replicas update a variable or its parts."""
    return bool(owners_of(node))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInPlan:
    """One node, and the facts that it must agree with.

    Attributes:
        owner: node of the variable that owns this slot.
        synchronizers: synchronizers of all variables that cross replicas.
    """

    v: VariableSummary
    node: PlanNode
    owner: PlanNode | None
    synchronizers: frozenset[str]
    topology: Topology
    names: frozenset[str]

    @property
    def described(self) -> str:
        sparse = "sparse " if self.v.sparse else ""
        return f"a {sparse}{self.v.kind} of {self.v.dtype} under {self.node.synchronizer}"

    @property
    def on_cores(self) -> bool:
        return "cross-replica-sum" in self.synchronizers

    @property
    def served(self) -> bool:
        """True if the variable is on a server, like all shared variables in a plan of servers alone.

        Beside collectives, what no gradient or new state reaches may be there or not, a slot as its variable
        is; so may what no step changes.
        """
        if self.v.synced or "ps" not in self.synchronizers:
            return self.node.synchronizer == "ps"
        if self.v.rule == "per-replica":
            return False
        always = self.synchronizers == {"ps"} and not self.v.only_read
        return always or _has_server(self.owner or self.node)

    @property
    def reduced(self) -> bool:
        return self.v.synced and self.node.synchronizer not in ("ps", "none", "cross-replica-sum")

    @property
    def in_bucket(self) -> bool:
        """True if its gradient is sent in a bucket, like all but rows that TensorFlow's collectives gather.

        Averages and new values from owners are dense, whatever the gradients are.
        """
        dense = not self.v.sparse or self.node.synchronizer == "average" or is_owned(self.node)
        by_rule = self.node.synchronizer in BY_RULE
        return self.reduced and not by_rule and (dense or self.node.transport == "tcp")

    @property
    def can_be_owned(self) -> bool:
        """True for a trainable under all-reduce; a slot has the owners of its variable."""
        by_all_reduce = self.node.synchronizer == "all-reduce" and self.v.kind == "trainable"
        return by_all_reduce or self.owner is not None

    @property
    def crosses_in_steps(self) -> bool:
        """True if its gradient crosses replicas that run in separate processes."""
        stays = self.node.synchronizer in ("none", "average", "cross-replica-sum", *BY_RULE)
        return self.v.kind == "trainable" and not stays


def _has_server(node: PlanNode) -> bool:
    return node.destination is not None or (
        node.partition is not None and node.partition.destinations is not None
    )


def check_nodes(nodes: Sequence[PlanNode], step: StepSummary, topology: Topology, *, where: str) -> None:
    """Check that nodes form a valid plan of a step on a topology.

    Args:
        where: beginning of the error message.
    Raises:
        StrategyError: a node is wrong; the message names the first one.
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
        checked = NodeInPlan(
            v=v,
            node=by_name[v.name],
            owner=None if v.slot_of is None else by_name.get(v.slot_of),
            synchronizers=frozenset(synchronizers),
            topology=topology,
            names=frozenset(known),
        )
        try:
            for rule, got, way_out in _mistakes(checked):
                raise StrategyError(f"{rule}, got {_readable(got)}; {way_out}")
        except StrategyError as error:
            raise StrategyError(f"{where}: variable {v.name!r}: {error}") from None


def _readable(value: object) -> object:
    return value.model_dump(exclude_none=True) if isinstance(value, BaseModel) else value


def _mistakes(checked: NodeInPlan) -> Iterator[Mistake]:
    """Apply all rules, in an order in which later rules may rely on earlier ones."""
    yield from _captured(checked)
    if checked.owner is not None:
        yield from _followed(checked, checked.owner)
    yield from _synchronizers(checked)
    if checked.node.partition is not None:
        yield from _cut(checked, checked.node.partition)
    for place in _PLACES:
        yield from place.mistakes(checked)
    for field, is_for, applies in _CONDITIONS:
        value = getattr(checked.node, field)
        if value not in (None, False) and not applies(checked):
            got = f"{_readable(value)} for {checked.described}"
            yield f"{field} is for {is_for}", got, f"set it to {'false' if value is True else 'null'}"
    yield from _owned(checked)
    if checked.node.compressor is not None:
        yield from _compressor(checked, checked.node.compressor)
    yield from _transport(checked)


def _captured(checked: NodeInPlan) -> Iterator[Mistake]:
    """Fields that follow from the capture."""
    v, node = checked.v, checked.node
    for fact in ("shape", "dtype", "bytes", "sparse"):
        captured, got = getattr(v, fact), getattr(node, fact)
        if captured != got:
            yield f"{fact} must be the captured one, {captured}", got, "take it from a plan of this workload"
    if not v.synced and node.synchronizer != "none":
        rule = "synchronizer must be none, because nothing of it crosses replicas"
        yield rule, node.synchronizer, "set it to none"
    if v.kind == "slot" and v.slot_of is None and checked.served and node.destination != UPDATER:
        rule = f"destination must be {UPDATER}, because all updates share it"
        yield rule, node.destination, f"use {UPDATER}"


def _followed(checked: NodeInPlan, owner: PlanNode) -> Iterator[Mistake]:
    """Fields of a slot that follow from its variable."""
    node, partition = checked.node, _without_groups(owner.partition)
    if checked.v.shape != owner.shape:
        if partition is not None and is_owned(owner):
            rule = f"a slot of another shape than {owner.variable!r} goes with the whole"
            yield rule, "parts", f"keep {owner.variable!r} whole with `partition: null`"
        partition = None
    expected = {
        "partition": (partition, _without_groups(node.partition)),
        "owner": (owner.owner, node.owner),
        "destination": (node.destination if owner.partition else owner.destination, node.destination),
    }
    for field, (value, got) in expected.items():
        if got != value:
            rule = f"{field} of a slot must follow {owner.variable!r}, {_readable(value)}"
            yield rule, got, "give it the same"


def _without_groups(partition: Partition | None) -> Partition | None:
    return partition and partition.model_copy(update={"groups": None})


_TOGETHER = (
    {"all-reduce", "average"},
    {"ps", "all-reduce"},
    {"ps", "hierarchical-all-reduce"},
    {"robust-gather", "hierarchical-all-reduce"},
    {"robust-servers", "hierarchical-all-reduce"},
)


def _synchronizers(checked: NodeInPlan) -> Iterator[Mistake]:
    if not checked.v.synced:
        return
    if len(checked.synchronizers) > 1 and checked.synchronizers not in _TOGETHER:
        rule = "synchronizers must be one, or all-reduce and average, or an all-reduce beside ps or a rule"
        yield rule, ", ".join(sorted(checked.synchronizers)), "choose among those"
    if checked.node.synchronizer == "average" and checked.v.rule == "sum":
        yield "what replicas add up has no average", "synchronizer average", "make it all-reduce"


def _cut(checked: NodeInPlan, partition: Partition) -> Iterator[Mistake]:
    v = checked.v
    if v.kind == "state" or (checked.owner is None and not v.synced):
        yield "only trainables that a gradient reaches have parts, with their slots", v.kind, _WHOLE
    if checked.on_cores:
        yield "on cores parts are equal and come by in_parts", "a partition", "set it to null"
    if not 0 <= partition.axis < len(v.shape):
        yield f"partition.axis must be an axis of shape {v.shape}", partition.axis, _WHOLE
    length, sizes = v.shape[partition.axis], partition.sizes
    if len(sizes) > length:
        rule = f"partition: axis {partition.axis} has {length} rows, one for each part at least"
        yield rule, f"{len(sizes)} parts", "use fewer shards"
    if len(sizes) < 2 or min(sizes) < 1 or sum(sizes) != length:
        rule = f"partition.sizes must be two or more, each at least 1, that add up to {length}"
        yield rule, f"{list(sizes)}, which add up to {sum(sizes)}", f"change them or {_WHOLE}"
    if checked.owner is None and partition.axis not in v.partitionable_axes:
        able = ", ".join(map(str, v.partitionable_axes))
        reason = v.cut_refusals.get(partition.axis)
        rule = (
            "a cut needs an update that is elementwise or row-local along its axis, and no use of the "
            "variable in control flow"
        )
        got = f"axis {partition.axis}, along which it cannot be cut" + (f" ({reason})" if reason else "")
        yield rule, got, f"use axis {able}" if able else _WHOLE
    for part in (part_name(v.name, k) for k in range(len(sizes))):
        if part in checked.names:
            yield "its parts need names of their own", f"a variable {part!r}", "rename that one"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Number in a field of a whole variable; for parts, `partition` has the field in the plural.

    Attributes:
        noun: noun for the numbered things, such as task.
        needed: True if every node to which the rule applies must have the number.
        end: exclusive upper limit.
    """

    field: str
    noun: str
    is_for: str
    applies: Callable[[NodeInPlan], bool]
    needed: bool
    end: Callable[[NodeInPlan], float]

    def mistakes(self, checked: NodeInPlan) -> Iterator[Mistake]:
        whole, partition = getattr(checked.node, self.field), checked.node.partition
        name, values = self.field, None if whole is None else (whole,)
        if partition is not None:
            if whole is not None:
                yield f"{name} must be null where parts have {name}s", whole, "drop it"
            name, values = f"partition.{name}s", getattr(partition, f"{name}s")
        n_places = 1 if partition is None else len(partition.sizes)
        applies, end = self.applies(checked), self.end(checked)
        rule = f"{name} must be a {self.noun} from 0" + ("" if end == math.inf else f" to {end - 1}")
        if values is not None and not applies:
            got = f"{whole if partition is None else list(values)} for {checked.described}"
            yield f"{name} is for {self.is_for}", got, "set it to null"
        elif values is None and applies and self.needed and partition is None:
            yield rule, None, "choose one"
        elif (values is None and applies and self.needed) or (values is not None and len(values) != n_places):
            yield f"{name} needs one for each of {n_places} sizes", len(values or ()), "add or drop some"
        for number in values or ():
            if not 0 <= number < end:
                yield rule, number, "choose one"


_PLACES = (
    _Place(
        field="destination",
        noun="task",
        is_for="what servers hold",
        applies=lambda c: c.served,
        needed=True,
        end=lambda c: c.topology.n_tasks,
    ),
    _Place(
        field="group",
        noun="bucket",
        is_for="what collectives sum or transport tcp moves",
        applies=lambda c: c.in_bucket,
        needed=True,
        end=lambda _: math.inf,
    ),
    _Place(
        field="owner",
        noun="replica",
        is_for="a trainable under all-reduce in a plan without servers",
        applies=lambda c: c.can_be_owned and "ps" not in c.synchronizers,
        needed=False,
        end=lambda c: c.topology.n_replicas,
    ),
)
_CONDITIONS: tuple[tuple[str, str, Callable[[NodeInPlan], bool]], ...] = (
    ("proxy", "a dense variable on a server", lambda c: c.node.synchronizer == "ps" and not c.v.sparse),
    (
        "transport",
        "gradients of collectives",
        lambda c: c.reduced and c.node.synchronizer not in ("average", *BY_RULE),
    ),
    ("in_parts", "what cores keep", lambda c: c.on_cores),
    (
        "in_parts",
        "emulated cores; TensorFlow's own rewrites of loops decide on TPU devices",
        lambda c: c.topology.device != "tpu",
    ),
    (
        "in_parts",
        "what replicas have alike, of a type that is gathered, with an element for each",
        lambda c: c.v.can_lie_in_parts(c.topology.n_replicas),
    ),
    ("whole_gradient", "a variable with an owner", lambda c: is_owned(c.node)),
    (
        "gathered",
        "an owner's variable that no step reads after its update",
        lambda c: is_owned(c.node) and c.v.read_before_update,
    ),
    ("compressor", "a gradient that crosses replicas", lambda c: c.crosses_in_steps),
    ("compressor", "gradients that all replicas get, not an owner alone", lambda c: not is_owned(c.node)),
    (
        "compressor",
        "dense floating gradients of known shape",
        lambda c: not c.v.sparse and c.v.dtype in compressors.FLOATING and -1 not in c.v.shape,
    ),
)


def _owned(checked: NodeInPlan) -> Iterator[Mistake]:
    """Rules of a variable that single replicas update; its slots follow it."""
    v, node, partition = checked.v, checked.node, checked.node.partition
    if checked.owner is not None or not is_owned(node):
        return
    by_all = "let all replicas update it, with no owner"
    if not v.bytes:
        yield "an owner is for a variable that has elements", list(v.shape), by_all
    if not v.apart:
        yield "one replica can update it only if no other update reads it", "one that does", by_all
    if v.gradient_shared and not v.sparse and not node.whole_gradient:
        yield "other updates read its gradient, which all must have", False, "set whole_gradient to true"
    if partition is not None and partition.axis not in v.apart_axes and len(set(owners_of(node))) > 1:
        yield (
            "parts with several owners need an update in which no part reads another",
            f"axis {partition.axis}, along which they do",
            f"{_WHOLE}, or give all parts one owner",
        )


def _transport(checked: NodeInPlan) -> Iterator[Mistake]:
    transport, compressor = checked.node.transport, checked.node.compressor
    if transport not in (None, "tcp") and checked.v.sparse and not is_owned(checked.node):
        yield "transport of rows is tcp, or null for TensorFlow's", transport, "use one of these"
    if transport == "nccl" and checked.topology.nccl_mistake is not None:
        need, received = checked.topology.nccl_mistake
        yield f"transport nccl needs {need}", received, "use auto"
    if transport == "nccl" and is_owned(checked.node):
        yield "transport nccl takes sums that all begin in one order", "an owner", "use auto"
    if transport != "tcp":
        return
    if checked.topology.n_tasks < 2:
        yield "transport tcp needs two workers", "one", "use auto"
    if "ps" in checked.synchronizers:
        # On one core there is only one such thread, and another worker's step may need it to read here.
        yield "transport tcp waits on a thread that servers need", "ps beside it", "use auto"
    if compressor is not None and not compressors.on_own_transport(compressor.name):
        rule = "transport tcp does not add up half precision"
        yield rule, f"compressor {compressor.name}", "use auto"


def _compressor(checked: NodeInPlan, compression: Compression) -> Iterator[Mistake]:
    compressors.check(compression)
    if compressors.BY_NAME[compression.name].matrices and len(checked.v.shape) < 2:
        rule = f"{compression.name} takes two axes or more"
        yield rule, f"shape {checked.v.shape}", "set compressor to null"
