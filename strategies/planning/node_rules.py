"""Rules for nodes that a person wrote, in a builder or an edited plan, to be run on a step.

One sweep over the nodes; the first thing wrong is one line with the variable, the rule, what was received and
the way out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from strategies.errors import StrategyError, suggestion
from strategies.ir.ranges import part_name
from strategies.plan import compressors
from strategies.plan.ownership import is_owned, ownership_mistake
from strategies.plan.schema import Compression, Partition, PlanNode, StepSummary, VariableSummary
from strategies.topology import UPDATER, Topology

_TOGETHER = (
    {"all-reduce", "average"},
    {"ps", "all-reduce"},
    {"ps", "hierarchical-all-reduce"},
)
_WHOLE = "keep it whole with `partition: null`"


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
        _Check(
            where=where,
            v=v,
            node=by_name[v.name],
            owner=None if v.slot_of is None else by_name.get(v.slot_of),
            synchronizers=frozenset(synchronizers),
            topology=topology,
            names=frozenset(known),
        ).run()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Check:
    """One node and what it must agree with.

    Attributes:
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

    def run(self) -> None:
        """Check all rules, what others build on first."""
        self._facts()
        self._synchronizer()
        if self.node.partition is None:
            self._place()
        else:
            self._cut(self.node.partition)
            self._places_of_parts(self.node.partition)
        if self.owner is not None:
            self._with_owner(self.owner)
        self._proxy()
        self._transport()
        wrong = ownership_mistake(self.v, self.node, self.owner, self.topology.n_replicas)
        if wrong is not None:
            self._fail(*wrong)
        if is_owned(self.node) and "ps" in self.synchronizers:
            self._fail("an owner needs a plan without servers", "one with", "set owner to null")
        if self.node.compressor is not None:
            self._compressor(self.node.compressor)

    @property
    def n_tasks(self) -> int:
        """How many tasks may serve."""
        return self.topology.n_tasks

    def _fail(self, rule: str, got: object, way_out: str) -> NoReturn:
        raise StrategyError(f"{self.where}: variable {self.v.name!r}: {rule}, got {got}; {way_out}")

    def _facts(self) -> None:
        for fact in ("shape", "dtype", "bytes", "sparse"):
            captured, got = getattr(self.v, fact), getattr(self.node, fact)
            if captured != got:
                self._fail(
                    f"{fact} must be the captured one, {captured}",
                    got,
                    "take it from a plan of this workload",
                )

    def _synchronizer(self) -> None:
        got = self.node.synchronizer
        if not self.v.synced:
            if got != "none":
                self._fail(
                    "nothing of it crosses replicas, so synchronizer must be none", got, "set it to none"
                )
        elif len(self.synchronizers) > 1 and self.synchronizers not in _TOGETHER:
            self._fail(
                "synchronizers must be one, or all-reduce and average, or ps and one kind of all-reduce",
                ", ".join(sorted(self.synchronizers)),
                "choose among those",
            )
        elif got == "average" and self.v.rule == "sum":
            self._fail("what replicas add up has no average", "synchronizer average", "make it all-reduce")

    @property
    def _served(self) -> bool:
        """Whether it lives on a server: what replicas share does, where there are servers.

        Beside collectives, what no gradient or new state reaches may be either, a slot as its variable is.
        """
        if self.v.synced or "ps" not in self.synchronizers:
            return self.node.synchronizer == "ps"
        if self.v.rule == "per-replica":
            return False
        return self.synchronizers == {"ps"} or _is_served(self.owner or self.node)

    @property
    def _reduced(self) -> bool:
        """Whether it takes part in collectives."""
        return self.v.synced and self.node.synchronizer not in ("ps", "none")

    @property
    def _in_bucket(self) -> bool:
        """Whether it travels with others: what is dense, averages and new values from owners included."""
        dense = not self.v.sparse or self.node.synchronizer == "average" or is_owned(self.node)
        return self._reduced and dense

    def _place(self) -> None:
        node = self.node
        if self._served:
            self._destination(node.destination, "destination")
            if self.v.kind == "slot" and self.v.slot_of is None and node.destination != UPDATER:
                self._fail(
                    f"what all updates share must be on task {UPDATER}", node.destination, f"use {UPDATER}"
                )
        elif node.destination is not None:
            self._fail(
                "every replica has its own, so destination must be null", node.destination, "set it to null"
            )
        in_bucket = self._in_bucket
        if in_bucket and (node.group is None or node.group < 0):
            self._fail("group must be the number of its bucket", node.group, "give one from 0")
        if not in_bucket and node.group is not None:
            self._fail(
                "only dense gradients of collectives have a bucket, so group must be null",
                node.group,
                "set it to null",
            )

    def _destination(self, task: int | None, field: str) -> None:
        if task is None or not 0 <= task < self.n_tasks:
            self._fail(
                f"{field} must be a task from 0 to {self.n_tasks - 1}", task, "choose one or add workers"
            )

    def _cut(self, partition: Partition) -> None:
        v = self.v
        if v.kind == "state" or (self.owner is None and not v.synced):
            self._fail("only trainables that a gradient reaches have parts, with their slots", v.kind, _WHOLE)
        if not 0 <= partition.axis < len(v.shape):
            self._fail(f"partition.axis must be an axis of shape {v.shape}", partition.axis, _WHOLE)
        length, sizes = v.shape[partition.axis], partition.sizes
        if len(sizes) > length:
            self._fail(
                f"partition: axis {partition.axis} has {length} rows, one for each part at least",
                f"{len(sizes)} parts",
                "use fewer shards",
            )
        if len(sizes) < 2 or min(sizes) < 1 or sum(sizes) != length:
            self._fail(
                f"partition.sizes must be two or more, each at least 1, that add up to {length}",
                f"{list(sizes)}, which add up to {sum(sizes)}",
                f"change them or {_WHOLE}",
            )
        if self.owner is None and partition.axis not in v.partitionable_axes:
            able = ", ".join(map(str, v.partitionable_axes))
            reason = v.cut_refusals.get(partition.axis)
            self._fail(
                "a cut needs an update that is elementwise or row-local along its axis, and no use of the "
                "variable in control flow",
                f"axis {partition.axis}, along which it cannot be cut" + (f" ({reason})" if reason else ""),
                f"use axis {able}" if able else _WHOLE,
            )
        for k in range(len(sizes)):
            if part_name(v.name, k) in self.names:
                self._fail(
                    "its parts need names of their own",
                    f"a variable {part_name(v.name, k)!r}",
                    "rename that one",
                )

    def _places_of_parts(self, partition: Partition) -> None:
        n = len(partition.sizes)
        for field in ("destination", "group"):
            if getattr(self.node, field) is not None:
                self._fail(
                    f"{field} must be null where parts have {field}s", getattr(self.node, field), "drop it"
                )
        for field, needed in (("destinations", self._served), ("groups", self._in_bucket)):
            given: tuple[int, ...] | None = getattr(partition, field)
            if needed and (given is None or len(given) != n):
                self._fail(
                    f"partition.{field} needs one for each of {n} sizes",
                    0 if given is None else len(given),
                    "add or drop some",
                )
            if not needed and given is not None:
                self._fail(f"partition.{field} must be null under its synchronizer", list(given), "drop it")
        for task in partition.destinations or ():
            self._destination(task, "partition.destinations")
        if min(partition.groups or (0,)) < 0:
            self._fail(
                "partition.groups must be numbers of buckets, from 0",
                min(partition.groups or ()),
                "change it",
            )

    def _with_owner(self, owner: PlanNode) -> None:
        """A slot lives where its variable does, and is cut as it is if it has its shape."""
        alike = self.v.shape == owner.shape
        cut, of_owner = _cut_of(self.node), _cut_of(owner)
        if cut != of_owner and (alike or cut is not None):
            rule = (
                f"a slot is cut like {owner.variable!r}, {of_owner}"
                if alike
                else "a slot of another shape is whole"
            )
            self._fail(rule, cut, "give it the same partition" if alike else _WHOLE)
        if owner.partition is None and self.node.destination != owner.destination:
            self._fail(
                f"a slot must be where {owner.variable!r} is, on task {owner.destination}",
                self.node.destination,
                "give it the same destination",
            )

    def _proxy(self) -> None:
        if self.node.proxy and (self.node.synchronizer != "ps" or self.v.sparse):
            what = "a sparse gradient" if self.v.sparse else f"synchronizer {self.node.synchronizer}"
            self._fail("a proxy copies a dense variable from its server", what, "set proxy to false")

    def _transport(self) -> None:
        transport = self.node.transport
        if transport is None:
            return
        rows = self.v.sparse and not is_owned(self.node)
        if not self._reduced or rows or self.node.synchronizer == "average":
            self._fail("transport is for dense gradients of collectives", transport, "set it to null")
        if transport == "tcp" and self.n_tasks < 2:
            self._fail("transport tcp needs two workers", "one", "use auto")
        if transport == "nccl" and self.topology.device != "gpu":
            self._fail("transport nccl needs GPUs", f"device {self.topology.device}", "use auto")
        if transport == "nccl" and is_owned(self.node):
            self._fail("transport nccl takes sums that all begin in one order", "an owner", "use auto")
        if transport == "tcp" and "ps" in self.synchronizers:
            # On one core that is the only one, and another worker's step may need it to read here.
            self._fail("transport tcp waits on a thread that servers need", "ps beside it", "use auto")
        if transport == "tcp" and self.node.compressor is not None:
            self._fail(
                "transport tcp takes gradients as they are",
                f"compressor {self.node.compressor.name}",
                "use auto",
            )

    def _compressor(self, compression: Compression) -> None:
        v, way_out = self.v, "set compressor to null"
        stays = self.node.synchronizer in ("none", "average")
        if v.kind != "trainable" or stays:
            what = f"synchronizer {self.node.synchronizer}" if stays else v.rule or v.kind
            self._fail("a compressor is for a gradient that crosses replicas", what, way_out)
        if v.sparse or v.dtype not in compressors.FLOATING or -1 in v.shape:
            what = "rows of a sparse gradient" if v.sparse else f"{v.dtype} of shape {v.shape}"
            self._fail("a compressor takes dense floating gradients", what, way_out)
        try:
            compressors.check(compression)
        except StrategyError as error:
            raise StrategyError(f"{self.where}: variable {v.name!r}: {error}") from None
        if compressors.BY_NAME[compression.name].matrices and len(v.shape) < 2:
            self._fail(f"{compression.name} takes two axes or more", f"shape {v.shape}", way_out)


def _is_served(node: PlanNode) -> bool:
    return node.destination is not None or (
        node.partition is not None and node.partition.destinations is not None
    )


def _cut_of(node: PlanNode) -> Mapping[str, object] | None:
    """Where a node's parts begin, end and live; None where it is whole."""
    return (
        None if node.partition is None else node.partition.model_dump(exclude={"groups"}, exclude_none=True)
    )
