"""Fully sharded variables: only owners store them, and all replicas gather them before they read them."""

from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.errors import StrategyError
from strategies.ir.graph import Node, producer, read_variable
from strategies.ir.replica_updates import prior_reads
from strategies.ir.resource_uses import resource_uses
from strategies.ir.tensor_proto import constant_array
from strategies.ir.train_graph import BEFORE_ALL, TrainGraph
from strategies.ir.variable import Variable
from strategies.passes.collectives.all_gather import Names, gather_values
from strategies.passes.collectives.buckets import Member, ShardBucket, shard_buckets
from strategies.passes.collectives.members import VARIABLES_KEY, Members
from strategies.passes.replicate.value_arguments import with_values
from strategies.passes.task_plan import TaskPlan
from strategies.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredJoins:
    """Nodes of a step that only join members of one bucket, along the axis of their parts.

    Attributes:
        joins: nodes that join the members, each with the rank of its replica.
        reads: names of the nodes that read members only for these.
    """

    joins: tuple[tuple[str, int | None], ...]
    reads: tuple[str, ...]


def gathered_joins(
    step: TrainGraph,
    buckets: Collection[ShardBucket],
    copies: Collection[Variable],
    prior: Mapping[str, Sequence[str]],
    *,
    several: bool,
) -> dict[Names, GatheredJoins]:
    """Neighbouring members of a bucket → nodes that join them, if forward does nothing else with them.

    Tasks may differ in it, because the same bytes are sent.

    Args:
        copies: all copies of members on this task.
        prior: handle → nodes that read a copy before its update, for copies that no node reads later.
        several: True also finds joins of several members along the first axis.
    """
    returned = set(step.returned())
    joining = _joining(step, copies, prior)
    handles: defaultdict[str, list[str]] = defaultdict(list)
    for v in copies:
        handles[v.name].append(v.handle)
    joins_of = {}
    for candidate in (t for bucket in buckets for t in _candidates(bucket.members, several=several)):
        shards = [member.shards for member in candidate]
        ranges = tuple(name for owned in shards for name in owned.ranges)
        joins = joining.get((ranges, shards[0].tensor.axis), ())
        read = [handle for name in ranges for handle in handles[name]]
        if not joins or not all(handle in prior for handle in read):
            continue
        reads = [name for handle in read for name in prior[handle]]
        if returned.isdisjoint(reads) and _takers(step, reads) <= {name for name, _ in joins}:
            names = tuple(member.name for member in candidate)
            joins_of[names] = GatheredJoins(joins=tuple(joins), reads=tuple(reads))
    return joins_of


def _candidates(members: Sequence[Member], *, several: bool) -> Iterator[tuple[Member, ...]]:
    """Members that may arrive as one tensor: one in several parts, or a whole bucket."""
    yield from ((member,) for member in members if len(member.shards.ranges) > 1)
    if several and len(members) > 1 and all(member.shards.tensor.axis == 0 for member in members):
        yield tuple(members)


def _joining(
    step: TrainGraph, copies: Collection[Variable], prior: Mapping[str, Sequence[str]]
) -> Mapping[tuple[Names, int], Sequence[tuple[str, int | None]]]:
    """Names of copies and axis → nodes outside of updates that concatenate their values, in this order."""
    graph = step.graph
    read_of = {read: v for v in copies for read in prior.get(v.handle, ())}
    update = step.update_nodes()
    joins: defaultdict[tuple[Names, int], list[tuple[str, int | None]]] = defaultdict(list)
    for node in graph.nodes:
        if node.op == "ConcatV2" and node.name not in update:
            *values, axis = map(producer, node.data_inputs)
            read = [read_of[value] for value in values if _is_read(graph.by_name[value], read_of)]
            along = constant_array(graph.by_name[axis])
            if len(read) == len(values) and along is not None:
                joins[tuple(v.name for v in read), int(along)].append((node.name, read[0].rank))
    return joins


def _is_read(node: Node, read_of: Container[str]) -> bool:
    return node.op == "ReadVariableOp" and node.name in read_of


def _takers(step: TrainGraph, reads: Collection[str]) -> set[str]:
    return {
        user.name
        for read in reads
        for user in step.graph.consumers.get(read, ())
        if read in map(producer, user.data_inputs)
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class GatherVariables:
    """Let forward and backward use the owners' values at the start of the step instead of own copies.

    A gather needs only the owners' variables, so all gathers start with the step and overlap with the
    computation of layers that already have their values. Whole values are tensors, which live until their
    last use. `ShardUpdates` removes the copies, which then only their updates use.

    Source:
        Rajbhandari et al. 2020, ZeRO, arXiv:1910.02054, section 5.3.
    """

    name: ClassVar[str] = "gather-variables"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        """Return the step in which local replicas use the values that others own.

        Raises:
            StrategyError: a variable is read after its update, or used in another way than by its value.
        """
        plan = self.plan
        copies = [v for v in graph.variables if v.name in plan.gathered]
        if not copies:
            return graph
        Members.of(topology, "replicas")  # refuses a group of one
        owned = [v for v in copies if v.rank == plan.owners[v.name]]
        by_name = graph.graph.by_name
        reads = {
            v.handle: read_variable(f"{v.handle}/kept", v.handle, v.dtype, by_name[v.handle].device)
            for v in owned
        }
        copies_to_gather = [v for v in copies if v.handle not in reads]
        prior = _prior_reads(graph, copies, copies_to_gather)
        buckets = self._buckets(copies)
        carried = [b for b in buckets if b.members[0].shards.ranges[0] in plan.on_own_transport]
        summed = [b for b in buckets if b not in carried]
        joins = gathered_joins(graph, carried, copies, prior, several=True)
        joins |= gathered_joins(graph, summed, copies, prior, several=False)
        gathered = gather_values(
            summed,
            carried,
            {(v.name, v.rank): reads[v.handle].name for v in owned},
            plan.task,
            topology,
            plan.hints,
            group_key=VARIABLES_KEY,
            joins=joins,
        )
        own = {name for v in owned for name in prior.get(v.handle, ())}
        replaced = _whole_nodes(graph, joins, gathered.wholes, own)
        nodes = _after_reads(
            graph, with_values(graph, copies_to_gather, prior, gathered.values, replaced), reads
        )
        return replace(
            graph,
            graph=graph.graph.with_nodes([*nodes, *reads.values(), *gathered.nodes]),
            # A replica takes part in exchanges even if it needs none of their values.
            step_targets=(*graph.step_targets, *gathered.done, *gathered.last_waits),
            transfers=(*graph.transfers, *gathered.transfers),
        )

    def _buckets(self, copies: Sequence[Variable]) -> tuple[ShardBucket, ...]:
        types = {v.name: v.dtype for v in copies}
        members = [
            Member(name=owned.variable, dtype=types[owned.ranges[0]], shards=owned, level=BEFORE_ALL)
            for owned in self.plan.shards
            if owned.ranges[0] in types
        ]
        # Backward produces gradients in the reverse of the order in which forward reads.
        return shard_buckets("sync/variables", members, self.plan.buckets[::-1])


def _prior_reads(
    graph: TrainGraph, copies: Sequence[Variable], gathered: Sequence[Variable]
) -> Mapping[str, tuple[str, ...]]:
    """Handle → nodes that read a copy before its update, for copies that no node reads later.

    Args:
        gathered: variables whose values other replicas own.
    """
    prior = prior_reads(graph, copies)
    for v in gathered:
        if v.handle not in prior:
            raise StrategyError(
                f"variable {v.name!r}: what its owner alone keeps is read before its update and as a value, "
                "got a read after it or a use of the variable itself; use `gathered: false` in the plan"
            )
    return prior


def _whole_nodes(
    graph: TrainGraph,
    joins: Mapping[Names, GatheredJoins],
    wholes: Mapping[tuple[Names, int], str],
    own: AbstractSet[str],
) -> dict[str, Node]:
    """Name → replacement of the node, for joins of gathered members and the reads that they need.

    Args:
        wholes: members and rank of the replica → tensor of their values.
        own: reads of the variables that this task owns, which stay.
    """
    by_name = graph.graph.by_name
    changed = {}
    for members, member_joins in joins.items():
        whole_of_rank = {rank: whole for (names, rank), whole in wholes.items() if names == members}
        for name, rank in member_joins.joins:
            node = by_name[name]
            assert rank is not None
            # It keeps its waits, among which may be the turn of its axis.
            inputs = (whole_of_rank[rank], f"^{producer(node.data_inputs[-1])}", *node.waits)
            changed[name] = replace(node, op="Identity", inputs=inputs, attrs={"T": node.attrs["T"]})
        for name in (name for name in member_joins.reads if name not in own):
            # Others may still wait for it.
            node = by_name[name]
            waits = (*dict.fromkeys(f"^{producer(whole)}" for whole in whole_of_rank.values()), *node.waits)
            changed[name] = replace(node, op="NoOp", inputs=waits, attrs={})
    return changed


def _after_reads(graph: TrainGraph, nodes: Iterable[Node], reads: Mapping[str, Node]) -> Iterator[Node]:
    """Nodes, with every write of a variable waiting for the read of the value that others receive.

    Args:
        reads: handle → read node.
    """
    uses, loads = resource_uses(graph.graph), {v.load for v in graph.variables}
    before: dict[str, list[str]] = {}
    for handle, read in reads.items():
        for write in uses[handle].writes:
            if write not in loads:
                before.setdefault(write, []).append(read.name)
    for node in nodes:
        yield node.waiting_for(*before[node.name]) if node.name in before else node
