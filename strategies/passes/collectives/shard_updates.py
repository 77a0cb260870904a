"""Sharded updates: one replica updates each variable and sends the new value to the others."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.errors import StrategyError
from strategies.ir.graph import Graph, Node, after, assign_variable, producer, read_variable
from strategies.ir.train_graph import TrainGraph, UpdateRegion
from strategies.ir.traversal import ancestors, at_level, descendants
from strategies.ir.variable import Variable
from strategies.passes.collectives.all_gather import Copy, gather_buckets, gather_values
from strategies.passes.collectives.buckets import ShardBucket
from strategies.passes.collectives.members import GATHER_GROUP_KEY, Members
from strategies.passes.task_plan import TaskPlan
from strategies.topology import Topology

_READY = frozenset({"Const", "Placeholder", "VarHandleOp"})


class Waits:
    """Replaces waits for removed nodes by waits for the nodes that preceded them.

    Args:
        instead: removed node → node that replaces it.
    """

    def __init__(self, graph: Graph, removed: AbstractSet[str], instead: Mapping[str, str]) -> None:
        self._by_name = graph.by_name
        self._removed = removed
        self._instead = instead
        self._known_waits: dict[tuple[str, bool], tuple[str, ...]] = {}

    def of(self, node: Node, *, for_others: bool) -> Node:
        """Return a remaining node with its new waits; the same object unless it waited for a removed one.

        Args:
            for_others: True if it also waits for replacements. Nodes that a replacement waits for must not.
        """
        if self._removed.isdisjoint(node.control_inputs):
            return node
        names: dict[str, None] = {}
        for name in node.control_inputs:
            names |= dict.fromkeys(
                self._past(name, for_others=for_others) if name in self._removed else (name,)
            )
        return replace(node, inputs=(*node.data_inputs, *after(names)))

    def before(self, names: Iterable[str], within: Collection[str]) -> tuple[str, ...]:
        """Remaining nodes that directly precede removed ones; nodes of `within` count as one with them."""
        remaining, _ = self._walk(names, within)
        return remaining

    def _past(self, name: str, *, for_others: bool) -> tuple[str, ...]:
        if (name, for_others) not in self._known_waits:
            before, passed = self._walk([name], self._removed)
            done = [self._instead[n] for n in passed if n in self._instead] if for_others else []
            self._known_waits[name, for_others] = (*before, *dict.fromkeys(done))
        return self._known_waits[name, for_others]

    def _walk(self, names: Iterable[str], within: Collection[str]) -> tuple[tuple[str, ...], list[str]]:
        """Remaining nodes that these need through nodes of `within`, by name, and the nodes on the way."""
        passed: dict[str, None] = {}
        before: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name in passed or name not in within:
                continue
            passed[name] = None
            for needed in map(producer, self._by_name[name].inputs):
                if needed in self._removed:
                    waiting.append(needed)
                elif self._by_name[needed].op not in _READY:
                    before.add(needed)
        return tuple(sorted(before)), list(passed)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardUpdates:
    """Let one replica update each variable and its slots; the others receive the new value.

    Every replica has a copy of every variable except the gathered ones, and makes the updates that have no
    owner. New values are sent in buckets, as soon as they are computed.
    """

    name: ClassVar[str] = "shard-updates"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        """Return the step in which local replicas update the variables that they own.

        Raises:
            StrategyError: a value that all replicas compute depends on one that only a single replica has.
        """
        Members.of(topology, "replicas")  # refuses a group of one
        return _ShardedStep(self.plan, graph, topology).step()


class _ShardedStep:
    """Step of one task: its replicas update the variables that they own, and receive the others."""

    def __init__(self, plan: TaskPlan, graph: TrainGraph, topology: Topology) -> None:
        self._plan = plan
        self._graph = graph
        self._topology = topology
        self._copies = {(v.name, v.rank): v for v in graph.variables}
        self._elsewhere = [r for r in graph.regions if self._is_elsewhere(r.variable, r.rank)]
        self._received = [r for r in self._elsewhere if r.variable not in plan.gathered]
        # Owner of each variable whose new values are sent to all.
        self._givers = {name: rank for name, rank in plan.owners.items() if name not in plan.gathered}
        self._own = [r for r in graph.regions if not self._is_elsewhere(r.variable, r.rank)]
        self._foreign = [b for b in graph.gradients() if self._is_elsewhere(b.variable, b.rank)]
        # Values that only the owner has: a variable's slots, itself if it is gathered, and its gradient
        # unless it is sent to all.
        self._private = {
            v.handle: v
            for v in graph.variables
            if self._is_elsewhere(v.slot_of, v.rank) or self._is_left_out(v.name, v.rank)
        }
        self._withheld = {
            b.values: b for b in self._foreign if b.indices is None and b.variable not in plan.whole_gradients
        }

    def step(self) -> TrainGraph:
        graph, update = self._graph, self._graph.update_nodes()
        removed = self._not_needed(update)
        result_names = {_copy(r): at_level(self._handle(r).name + "/given", r.level) for r in self._received}
        waits = Waits(
            graph.graph, removed, {t: result_names[_copy(r)] for r in self._received for t in r.targets}
        )
        reads = self._new_values()
        gathered = gather_values(
            self._buckets(own_transport=False),
            self._buckets(own_transport=True),
            {copy: node.name for copy, node in reads.items()},
            self._plan.task,
            self._topology,
            self._plan.hints,
            group_key=GATHER_GROUP_KEY,
        )
        assignments = [self._assignment(r, result_names, gathered.values, waits) for r in self._received]
        before = self._read_before(reads)
        nodes = [
            waits.of(node, for_others=node.name not in update).waiting_for(*before.get(node.name, ()))
            for node in graph.graph.nodes
            if node.name not in removed
        ]
        summed = [
            n for b in self._foreign if b.values not in self._withheld for n in (b.values, b.indices) if n
        ]
        return replace(
            graph,
            graph=graph.graph.with_nodes([*nodes, *reads.values(), *gathered.nodes, *assignments]),
            variables=tuple(
                replace(v, sole=True) if self._is_sole(v) else v
                for v in graph.variables
                if v.handle not in self._private
            ),
            regions=tuple(
                _region(r, result_names, removed)
                for r in graph.regions
                if not self._is_left_out(r.variable, r.rank)
            ),
            shared_update=tuple(name for name in graph.shared_update if name not in removed),
            # A replica takes part in exchanges even if it needs none of their values.
            step_targets=(*graph.step_targets, *gathered.done, *summed),
            transfers=(*graph.transfers, *gathered.transfers),
        )

    def _is_elsewhere(self, variable: str | None, rank: int | None) -> bool:
        """Return True if another replica than this one updates a variable."""
        return variable is not None and self._plan.owners.get(variable, rank) != rank

    def _is_left_out(self, variable: str, rank: int | None) -> bool:
        return variable in self._plan.gathered and self._is_elsewhere(variable, rank)

    def _is_sole(self, v: Variable) -> bool:
        return v.slot_of in self._plan.owners or v.name in self._plan.gathered

    def _handle(self, region: UpdateRegion) -> Node:
        return self._graph.graph.by_name[self._copies[region.variable, region.rank].handle]

    def _not_needed(self, update: set[str]) -> set[str]:
        """Nodes of the update side not needed here: other replicas' updates, and inputs of these alone."""
        graph = self._graph.graph
        theirs = {target for region in self._elsewhere for target in region.targets}
        outside = set(graph.by_name) - update
        users = {u.name for name in (*self._private, *self._withheld) for u in graph.consumers.get(name, ())}
        unused = descendants(graph, (users & update) | theirs, stop=outside, control=False)
        needed = {target for region in self._own for target in region.targets}
        needed |= update & {producer(ref) for name in outside for ref in graph.by_name[name].data_inputs}
        if not needed.isdisjoint(unused):
            self._refuse(min(needed & unused))
        return update - ancestors(graph, needed, stop=outside | unused)

    def _refuse(self, name: str) -> None:
        graph = self._graph.graph
        read = ancestors(graph, [name], control=False)
        slots = [v.slot_of or v.name for handle, v in self._private.items() if handle in read]
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
        result_names: Mapping[Copy, str],
        values: Mapping[Copy, str],
        waits: Waits,
    ) -> Node:
        handle = self._handle(region)
        copy = _copy(region)
        before = waits.before(region.targets, within={*region.nodes, *region.targets})
        dtype = self._copies[region.variable, region.rank].dtype
        return assign_variable(result_names[copy], handle.name, values[copy], dtype, handle.device, before)

    def _new_values(self) -> dict[Copy, Node]:
        writes = self._writes()
        return {
            _copy(region): _new_value(
                self._copies[region.variable, region.rank],
                writes[self._handle(region).name, region.level],
                region.level,
                replica.device,
            )
            for replica in self._topology.local_replicas(self._plan.task)
            for region in self._own
            if region.rank == replica.rank == self._givers.get(region.variable)
        }

    def _read_before(self, reads: Mapping[Copy, Node]) -> dict[str, list[str]]:
        """Assignment → reads of the variable's earlier updates, which must precede it."""
        earlier_reads: dict[str, list[str]] = {}
        for region in self._own:
            for level in range(1, region.level):
                read = reads.get((at_level(region.variable, level), region.rank))
                if read is not None:
                    for target in region.targets:
                        earlier_reads.setdefault(target, []).append(read.name)
        return earlier_reads

    def _buckets(self, *, own_transport: bool) -> tuple[ShardBucket, ...]:
        carried = self._plan.on_own_transport
        chosen = [
            owned
            for owned in self._plan.shards
            if owned.ranges[0] in self._givers and (owned.ranges[0] in carried) == own_transport
        ]
        return gather_buckets(self._graph, chosen, self._plan.buckets)

    def _writes(self) -> dict[tuple[str, int], list[str]]:
        """Handle and level → assignments made here."""
        assignments: dict[tuple[str, int], dict[str, None]] = {}
        for region in self._own:
            for target in region.targets:
                for handle in dict.fromkeys(map(producer, self._graph.graph.by_name[target].data_inputs)):
                    assignments.setdefault((handle, region.level), {})[target] = None
        return {key: list(targets) for key, targets in assignments.items()}


def _copy(region: UpdateRegion) -> Copy:
    return at_level(region.variable, region.level), region.rank


def _region(region: UpdateRegion, result_names: Mapping[Copy, str], removed: set[str]) -> UpdateRegion:
    name = result_names.get(_copy(region))
    if name is not None:
        return replace(region, nodes=(name,), targets=(name,))
    return replace(region, nodes=tuple(n for n in region.nodes if n not in removed))


def _new_value(v: Variable, writes: Sequence[str], level: int, device: str) -> Node:
    return read_variable(at_level(f"{v.handle}/made", level), v.handle, v.dtype, device, writes)
