"""Between-graph synchronisation through parameter servers."""

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from strategies.ir.control_flow import LoopFrames
from strategies.ir.graph import Node
from strategies.ir.replica_updates import late_nodes
from strategies.ir.resource_uses import resource_uses
from strategies.ir.train_graph import Boundary, Contribution, TrainGraph
from strategies.ir.traversal import levels_of
from strategies.passes.parameter_server.accumulator import Accumulator
from strategies.passes.parameter_server.token_queues import tokens_down
from strategies.passes.replicate.rewire import contribute
from strategies.passes.robust.aggregate_gathered import with_aggregated
from strategies.passes.robust.gradient_vector import Aggregated, ServerGathering, by_level
from strategies.passes.task_plan import TaskPlan
from strategies.topology import UPDATER, Topology


@dataclass(frozen=True, kw_only=True, slots=True)
class ParameterServerSync:
    """Every task pushes its contributions to the servers; one task updates when all have arrived.

    Task 0 runs the takes and the update regions of all servers in its own session, so that the order between
    the captured updates (a shared step counter, a global norm) holds across servers; the work itself stays on
    them. Another task's step ends with a token that task 0 sends after the update, directly or through other
    tasks: no task reads before it.
    """

    name: ClassVar[str] = "sync-ps"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        if topology.n_tasks == 1:
            return graph
        late = late_nodes(graph, [v for v in graph.variables if v.rank is None])
        shared = [b for b in graph.boundaries if b.rank is None]
        by_rule = [b for b in shared if self.plan.aggregation is not None and b.role == "gradient"]
        reads = _Reads.of(graph, shared, late)
        exchange = _Exchange()
        for gathering in self._gatherings(by_rule, topology):
            self._push_together(gathering, reads, exchange, topology)
        for boundary in shared:
            if boundary not in by_rule:
                self._push(boundary, reads, exchange, topology)
        if self.plan.task == UPDATER:
            return _updating(graph, exchange, topology)
        return self._waiting_for_updates(graph, exchange, late, topology)

    def _push_together(
        self, gathering: ServerGathering, reads: "_Reads", exchange: "_Exchange", topology: Topology
    ) -> None:
        """Push one level's gradients as a vector, to which the server applies a rule."""
        task = self.plan.task
        sent = gathering.vector.sent(task, topology.host_device(task))
        nodes = gathering.push(task, sent, reads.before(gathering.vector.boundaries))
        exchange.pushes.append(nodes[-1].name)
        exchange.nodes += [*sent.nodes, *nodes]
        if task == UPDATER:
            rank = topology.local_replicas(task)[0].rank
            nodes, aggregated = gathering.take(topology, rank, (rank,))
            exchange.nodes += nodes
            exchange.aggregated.append(aggregated)

    def _push(self, boundary: Boundary, reads: "_Reads", exchange: "_Exchange", topology: Topology) -> None:
        task = self.plan.task
        device = topology.host_device(self.plan.destinations[boundary.variable])
        accumulator = Accumulator.of(boundary, device, required=topology.n_tasks)
        # A task may push only zeros, yet its push signals that it has read the variable.
        nodes = accumulator.push(
            boundary.contributions[0],
            reads.before([boundary]),
            topology.host_device(task),
            task=task,
            n_tasks=topology.n_tasks,
        )
        exchange.pushes.append(nodes[-1].name)
        exchange.nodes += nodes
        if task == UPDATER:
            nodes, exchange.combined[boundary.values] = accumulator.take()
            exchange.nodes += nodes

    def _waiting_for_updates(
        self, graph: TrainGraph, exchange: "_Exchange", late: Container[str], topology: Topology
    ) -> TrainGraph:
        """Step of a task that pushes, and ends when the updater's token has arrived and is passed on."""
        tokens = _tokens(self.plan.task, exchange.pushes, topology)
        updated = {v.name for v in graph.variables if v.rank is None}
        # The remaining nodes belong to this task's replicas; the updater checks the updated values.
        return replace(
            contribute(graph, {}, [*exchange.nodes, *(node for nodes in tokens for node in nodes)]),
            boundaries=tuple(b for b in graph.boundaries if b.rank is not None),
            regions=tuple(r for r in graph.regions if r.variable not in updated),
            shared_update=tuple(n for n in graph.shared_update if graph.graph.by_name[n].device),
            state_targets=tuple(t for t in graph.state_targets if t not in late),
            step_targets=(*exchange.pushes, *(nodes[-1].name for nodes in tokens)),
        )

    def _gatherings(self, by_rule: Sequence[Boundary], topology: Topology) -> tuple[ServerGathering, ...]:
        if not by_rule:
            return ()
        device = topology.host_device(self.plan.destinations[by_rule[0].variable])
        return tuple(
            ServerGathering(vector=vector, device=device, task=UPDATER, name=vector.name)
            for vector in by_level(self.plan, by_rule)
        )


@dataclass(kw_only=True, slots=True)
class _Exchange:
    """Pushes of one task; on the updater also takes, by boundary, and gradients combined by a rule."""

    nodes: list[Node] = field(default_factory=list)
    pushes: list[str] = field(default_factory=list)
    combined: dict[str, Contribution] = field(default_factory=dict)
    aggregated: list[Aggregated] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reads:
    """Reads of shared variables that end before a push, because updates come after it.

    Attributes:
        by_variable: variable → its reads in the step, without those of sessions and updates.
        common: reads of variables without a gradient (a step counter in the loss), which are updated when all
            gradients have come.
        levels: node → level; reads after an update are for the gradients of the next level.
    """

    by_variable: Mapping[str, Sequence[str]]
    common: Sequence[str]
    levels: Mapping[str, int]
    loops: LoopFrames

    @classmethod
    def of(cls, graph: TrainGraph, shared: Sequence[Boundary], late: Collection[str]) -> "_Reads":
        uses = resource_uses(graph.graph)
        not_waited_for = graph.update_nodes() | {v.read for v in graph.variables} | set(late)
        by_variable = {
            v.name: [read for read in uses[v.handle].reads if read not in not_waited_for]
            for v in graph.variables
            if v.rank is None
        }
        crossing = {boundary.variable for boundary in shared}
        marks = {n for b in shared for n in (b.values, b.indices) if n is not None}
        return cls(
            by_variable=by_variable,
            common=[read for name, reads in by_variable.items() if name not in crossing for read in reads],
            levels=levels_of(graph.graph, marks),
            loops=LoopFrames.of(graph.graph),
        )

    def before(self, pushed: Sequence[Boundary]) -> Iterable[str]:
        own = (read for b in pushed for read in self.by_variable[b.variable])
        reads = dict.fromkeys((*own, *self.common))
        return self.loops.outside(name for name in reads if self.levels[name] < pushed[0].level)


def _updating(graph: TrainGraph, exchange: _Exchange, topology: Topology) -> TrainGraph:
    """Step of the updater, which sends tokens after the updates."""
    graph = with_aggregated(graph, exchange.aggregated, [])
    tokens = _tokens(UPDATER, graph.targets(), topology)
    added = [*exchange.nodes, *(node for nodes in tokens for node in nodes)]
    targets = (*exchange.pushes, *(nodes[-1].name for nodes in tokens))
    return contribute(graph, exchange.combined, added, step_targets=targets)


def _tokens(task: int, after: Iterable[str], topology: Topology) -> list[tuple[Node, ...]]:
    return tokens_down(
        UPDATER,
        task,
        topology.n_tasks,
        name=lambda worker: f"tokens/worker_{worker}",
        device=topology.host_device,
        after=after,
    )
