"""Updates made by one replica each, which gives the others the new values."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeAlias

from strategies.errors import StrategyError
from strategies.ir.assembly.levels import at_level
from strategies.ir.graph import Node, Shape, producer
from strategies.ir.train_graph import TrainGraph, UpdateRegion
from strategies.ir.transfer import Transfer
from strategies.ir.traversal import ancestors, descendants
from strategies.ir.variable import Variable
from strategies.numerics.shards import all_gather
from strategies.passes.collectives.buckets import Member, ShardBucket, shard_buckets
from strategies.passes.collectives.control_edges import Waits
from strategies.passes.collectives.keys import GATHER_GROUP_KEY, instance_keys
from strategies.passes.collectives.members import Members
from strategies.passes.collectives.ring_gather import transport_gather
from strategies.passes.task_plan import TaskPlan
from strategies.tf_bridge.attrs import dtype_number
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import Replica, Topology

_Copy: TypeAlias = tuple[str, int | None]
"""A value of a variable, by the name of its exchange, and the replica that has a copy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardUpdates:
    """Leave the update of each variable, and its slots, to one replica; the others get its new value.

    Every replica keeps a copy of every variable, and makes the updates that have no owner. New values travel
    a bucket at a time, as soon as they are made.

    Attributes:
        buckets: names of the variables of each bucket.
        owners: variable → rank of the replica that alone updates it.
        whole: variables whose dense gradient every replica gets the sum of, not the owner alone.
        carried: variables whose new values travel by the workers' own transport.
        hints: variable → TensorFlow's implementation for its bucket, `auto` unless given.
    """

    name: ClassVar[str] = "shard-updates"
    task: int
    buckets: tuple[tuple[str, ...], ...]
    owners: Mapping[str, int]
    whole: frozenset[str] = frozenset()
    carried: frozenset[str] = frozenset()
    hints: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: TaskPlan) -> "ShardUpdates | None":
        """Where single replicas update variables for all."""
        if not plan.owners:
            return None
        return cls(
            task=plan.task,
            buckets=plan.buckets,
            owners=plan.owners,
            whole=plan.whole_gradients,
            carried=plan.on_own_transport.intersection(plan.owners),
            hints=plan.hints,
        )

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        """The step in which local replicas update what they own.

        Raises:
            StrategyError: what all replicas compute reads something that one of them alone has.
        """
        if not self.owners:
            return graph
        Members.of(topology, "replicas")  # refuses a group of one
        return _ShardedStep(self, graph, topology).step()

    def elsewhere(self, variable: str | None, rank: int | None) -> bool:
        """Whether another replica than this one updates a variable."""
        return variable is not None and self.owners.get(variable, rank) != rank


class _ShardedStep:
    """The step of one task: its replicas update what they own, and are given what others own."""

    def __init__(self, shards: ShardUpdates, graph: TrainGraph, topology: Topology) -> None:
        self._shards = shards
        self._graph = graph
        self._topology = topology
        self._copies = {(v.name, v.rank): v for v in graph.variables}
        self._given = [r for r in graph.regions if shards.elsewhere(r.variable, r.rank)]
        self._made = [r for r in graph.regions if not shards.elsewhere(r.variable, r.rank)]
        self._foreign = [b for b in graph.gradients() if shards.elsewhere(b.variable, b.rank)]
        # What only the owner has: a variable's slots, and its gradient if it is not told to all.
        self._private = {v.handle: v for v in graph.variables if shards.elsewhere(v.slot_of, v.rank)}
        self._withheld = {
            b.values: b for b in self._foreign if b.indices is None and b.variable not in shards.whole
        }

    def step(self) -> TrainGraph:
        """The rewritten step."""
        graph, update = self._graph, self._graph.update_nodes()
        removed = self._not_needed(update)
        given = {_copy(r): at_level(self._handle(r).name + "/given", r.level) for r in self._given}
        waits = Waits(graph.graph, removed, {t: given[_copy(r)] for r in self._given for t in r.targets})
        reads = self._new_values()
        added, values, exchanged, transfers = self._exchanges(reads)
        added += [self._assignment(r, given, values, waits) for r in self._given]
        before = self._read_before(reads)
        nodes = [
            _after(waits.of(node, for_others=node.name not in update), before.get(node.name, ()))
            for node in graph.graph.nodes
            if node.name not in removed
        ]
        summed = [
            n for b in self._foreign if b.values not in self._withheld for n in (b.values, b.indices) if n
        ]
        return replace(
            graph,
            graph=graph.graph.with_nodes([*nodes, *added]),
            variables=tuple(
                replace(v, sole=True) if v.slot_of in self._shards.owners else v
                for v in graph.variables
                if v.handle not in self._private
            ),
            regions=tuple(_region(r, given, removed) for r in graph.regions),
            shared_update=tuple(name for name in graph.shared_update if name not in removed),
            # A replica takes part in exchanges of which it needs nothing itself.
            step_targets=(*graph.step_targets, *exchanged, *summed),
            transfers=(*graph.transfers, *transfers),
        )

    def _handle(self, region: UpdateRegion) -> Node:
        return self._graph.graph.by_name[self._copies[region.variable, region.rank].handle]

    def _not_needed(self, update: set[str]) -> set[str]:
        """Nodes of the update side that nothing here needs: what others make, and what leads there only."""
        graph = self._graph.graph
        theirs = {target for region in self._given for target in region.targets}
        outside = set(graph.by_name) - update
        users = {u.name for name in (*self._private, *self._withheld) for u in graph.consumers.get(name, ())}
        gone = descendants(graph, (users & update) | theirs, stop=outside, control=False)
        needed = {target for region in self._made for target in region.targets}
        needed |= update & {producer(ref) for name in outside for ref in graph.by_name[name].data_inputs}
        if not needed.isdisjoint(gone):
            self._refuse(min(needed & gone))
        return update - ancestors(graph, needed, stop=outside | gone)

    def _refuse(self, name: str) -> None:
        graph = self._graph.graph
        read = ancestors(graph, [name], control=False)
        slots = [str(v.slot_of) for handle, v in self._private.items() if handle in read]
        gradients = [b.variable for values, b in self._withheld.items() if values in read]
        what, variable, way_out = (
            ("its slot", min(slots), "`owner: null`")
            if slots
            else ("its gradient", min(gradients, default=name), "`whole_gradient: true`")
        )
        raise StrategyError(
            f"variable {variable!r}: with an owner it must not be read by updates of others, got node "
            f"{name!r} ({graph.by_name[name].op}), which needs {what}; use {way_out} in the plan"
        )

    def _assignment(
        self,
        region: UpdateRegion,
        given: Mapping[_Copy, str],
        values: Mapping[_Copy, str],
        waits: Waits,
    ) -> Node:
        """What takes the new value, after all that the update itself would have waited for."""
        handle = self._handle(region)
        copy = _copy(region)
        before = waits.before(region.targets, within={*region.nodes, *region.targets})
        return Node(
            name=given[copy],
            op="AssignVariableOp",
            inputs=(handle.name, values[copy], *(f"^{name}" for name in before)),
            attrs={"dtype": self._copies[region.variable, region.rank].dtype},
            device=handle.device,
        )

    def _new_values(self) -> dict[_Copy, Node]:
        """What is read of the variables that local replicas own, after each of their updates."""
        owners, writes = self._shards.owners, self._writes()
        return {
            _copy(region): _new_value(
                self._copies[region.variable, region.rank],
                writes[self._handle(region).name, region.level],
                region.level,
                replica.device,
            )
            for replica in self._topology.local_replicas(self._shards.task)
            for region in self._made
            if region.rank == replica.rank == owners.get(region.variable)
        }

    def _read_before(self, reads: Mapping[_Copy, Node]) -> dict[str, list[str]]:
        """Assignment → the reads of what the variable's earlier updates have made, which come before it."""
        earlier_reads: dict[str, list[str]] = {}
        for region in self._made:
            for level in range(1, region.level):
                read = reads.get((at_level(region.variable, level), region.rank))
                if read is not None:
                    for target in region.targets:
                        earlier_reads.setdefault(target, []).append(read.name)
        return earlier_reads

    def _exchanges(
        self, reads: Mapping[_Copy, Node]
    ) -> tuple[list[Node], dict[_Copy, str], list[str], tuple[Transfer, ...]]:
        """Nodes, copy → the new value that it is given, nodes that run after the exchanges, and transfers."""
        shards = self._shards
        local = self._topology.local_replicas(shards.task)
        own_values = {copy: node.name for copy, node in reads.items()}
        added: list[Node] = [*reads.values()]
        values: dict[_Copy, str] = {}
        exchanged: list[str] = []
        transfers: list[Transfer] = []
        carried = self._buckets(carried=True)
        last: list[str] = []
        for level in sorted({bucket.level for bucket in carried}):
            of_level = [bucket for bucket in carried if bucket.level == level]
            gathered = transport_gather(of_level, own_values, shards.task, self._topology, last)
            last = [gathered.last]
            added += gathered.nodes
            values |= gathered.values
            exchanged += gathered.done
            transfers += gathered.transfers
        buckets = self._buckets(carried=False)
        keys = instance_keys(name for bucket in buckets for name in bucket.key_names)
        for replica, bucket in itertools.product(local, buckets):
            hint = shards.hints.get(bucket.members[0].variable, "auto")
            nodes, taken, done = _gather(bucket, own_values, replica, self._topology, keys, hint)
            added += nodes
            values |= taken
            exchanged.append(done)
        return added, values, exchanged, tuple(transfers)

    def _buckets(self, *, carried: bool) -> tuple[ShardBucket, ...]:
        """What the workers' own transport gathers, or what TensorFlow's collectives do."""
        owners = self._shards.owners
        levels: dict[str, dict[int, None]] = {}
        for region in self._graph.regions:
            levels.setdefault(region.variable, {})[region.level] = None
        members = [
            Member(
                name=at_level(v.name, level),
                variable=v.name,
                dtype=v.dtype,
                dims=v.shape.dims or (),
                owner=owners[v.name],
                level=level,
            )
            for v in self._graph.variables
            if v.name in owners and (v.name in self._shards.carried) == carried
            for level in levels.get(v.name, ())
        ]
        return shard_buckets("sync/gather", members, self._shards.buckets)

    def _writes(self) -> dict[tuple[str, int], list[str]]:
        """Handle and level → the assignments that are made here of it."""
        assignments: dict[tuple[str, int], dict[str, None]] = {}
        for region in self._made:
            for target in region.targets:
                for handle in dict.fromkeys(map(producer, self._graph.graph.by_name[target].data_inputs)):
                    assignments.setdefault((handle, region.level), {})[target] = None
        return {key: list(targets) for key, targets in assignments.items()}


def _copy(region: UpdateRegion) -> _Copy:
    return at_level(region.variable, region.level), region.rank


def _after(node: Node, reads: Sequence[str]) -> Node:
    return replace(node, inputs=(*node.inputs, *(f"^{name}" for name in reads))) if reads else node


def _region(region: UpdateRegion, given: Mapping[_Copy, str], removed: set[str]) -> UpdateRegion:
    name = given.get(_copy(region))
    if name is not None:
        return replace(region, nodes=(name,), targets=(name,))
    return replace(region, nodes=tuple(n for n in region.nodes if n not in removed))


def _new_value(v: Variable, writes: Sequence[str], level: int, device: str) -> Node:
    return Node(
        name=at_level(f"{v.handle}/made", level),
        op="ReadVariableOp",
        inputs=(v.handle, *(f"^{name}" for name in writes)),
        attrs={"dtype": v.dtype},
        device=device,
    )


def _gather(
    bucket: ShardBucket,
    own_values: Mapping[_Copy, str],
    replica: Replica,
    topology: Topology,
    keys: Mapping[str, int],
    hint: str,
) -> tuple[Sequence[Node], dict[_Copy, str], str]:
    """One replica's nodes, what it takes from others, and the node that runs after the exchange."""
    rank = replica.rank
    own = [m for m in bucket.members if m.owner == rank]
    snippet = trace(
        all_gather,
        tuple(TensorSpec(dtype=bucket.dtype, shape=Shape(m.dims)) for m in own),
        shapes=tuple(m.dims for m in bucket.members),
        owners=bucket.owners,
        rank=rank,
        order=topology.collective_order(),
        group_key=GATHER_GROUP_KEY,
        keys=tuple(keys[name] for name in bucket.key_names),
        dtype=dtype_number(bucket.dtype),
        hint=hint,
    )
    nodes, (*values, done) = snippet.splice(
        f"{bucket.name}/replica_{rank}/", [own_values[m.name, rank] for m in own], device=replica.device
    )
    others = ((m.name, rank) for m in bucket.members if m.owner != rank)
    return nodes, dict(zip(others, values, strict=True)), done.removeprefix("^")
