"""Between-graph synchronisation through parameter servers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.ir.control_flow import LoopFrames
from strategies.ir.graph import Node
from strategies.ir.replica_updates import late_nodes
from strategies.ir.resource_uses import resource_uses
from strategies.ir.train_graph import Boundary, Contribution, TrainGraph
from strategies.ir.traversal import levels_of
from strategies.passes.parameter_server.accumulator import Accumulator
from strategies.passes.parameter_server.token_queues import await_token, give_token
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
    them. Another task's step ends with a token that task 0 sends after the update: no task reads before
    it.
    """

    name: ClassVar[str] = "sync-ps"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        if topology.n_tasks == 1:
            return graph
        uses, loops = resource_uses(graph.graph), LoopFrames.of(graph.graph)
        handles = {v.name: v.handle for v in graph.variables if v.rank is None}
        shared = [b for b in graph.boundaries if b.rank is None]
        by_rule = [b for b in shared if self.plan.aggregation is not None and b.role == "gradient"]
        updates = self.plan.task == UPDATER
        pushes: list[str] = []
        added: list[Node] = []
        combined: dict[str, Contribution] = {}
        # Updates come after the push, and a session reads for itself when no step runs.
        late = late_nodes(graph, [v for v in graph.variables if v.rank is None])
        not_waited_for = graph.update_nodes() | {v.read for v in graph.variables} | late
        crossing = {boundary.variable for boundary in shared}
        # Variables without a gradient (a step counter in the loss) are updated when all gradients have come.
        common = [
            read
            for name, handle in handles.items()
            if name not in crossing
            for read in uses[handle].reads
            if read not in not_waited_for
        ]
        # Reads after an update are for the gradients of the next level.
        levels = levels_of(graph.graph, {n for b in shared for n in (b.values, b.indices) if n is not None})

        def reads_before(pushed: Sequence[Boundary]) -> Iterable[str]:
            own = (read for b in pushed for read in uses[handles[b.variable]].reads)
            before = dict.fromkeys((*(name for name in own if name not in not_waited_for), *common))
            return loops.outside(name for name in before if levels[name] < pushed[0].level)

        gathered: list[Aggregated] = []
        for gathering in self._gatherings(by_rule, topology):
            sent = gathering.vector.sent(self.plan.task, topology.host_device(self.plan.task))
            nodes = gathering.push(self.plan.task, sent, reads_before(gathering.vector.boundaries))
            pushes.append(nodes[-1].name)
            added += [*sent.nodes, *nodes]
            if updates:
                rank = topology.local_replicas(self.plan.task)[0].rank
                nodes, aggregated = gathering.take(topology, rank, (rank,))
                added += nodes
                gathered.append(aggregated)
        for boundary in shared:
            if boundary in by_rule:
                continue
            device = topology.host_device(self.plan.destinations[boundary.variable])
            accumulator = Accumulator.of(boundary, device, required=topology.n_tasks)
            reads = reads_before([boundary])
            # A task may push only zeros, yet its push signals that it has read the variable.
            nodes = accumulator.push(
                boundary.contributions[0],
                reads,
                topology.host_device(self.plan.task),
                task=self.plan.task,
                n_tasks=topology.n_tasks,
            )
            pushes.append(nodes[-1].name)
            added += nodes
            if updates:
                nodes, combined[boundary.values] = accumulator.take()
                added += nodes
        if updates:
            graph = with_aggregated(graph, gathered, [])
            device = topology.host_device(UPDATER)
            tokens = [
                give_token(_tokens(w), w, device, graph.targets())
                for w in range(topology.n_tasks)
                if w != UPDATER
            ]
            added += [node for nodes in tokens for node in nodes]
            return contribute(
                graph, combined, added, step_targets=(*pushes, *(nodes[-1].name for nodes in tokens))
            )
        wait = await_token(_tokens(self.plan.task), topology.host_device(UPDATER), pushes)
        # The remaining nodes belong to this task's replicas; the updater checks the updated values.
        own_state = tuple(t for t in graph.state_targets if t not in late)
        return replace(
            contribute(graph, combined, [*added, *wait]),
            boundaries=tuple(b for b in graph.boundaries if b.rank is not None),
            regions=tuple(r for r in graph.regions if r.variable not in handles),
            shared_update=tuple(n for n in graph.shared_update if graph.graph.by_name[n].device),
            state_targets=own_state,
            step_targets=(*pushes, wait[-1].name),
        )

    def _gatherings(self, by_rule: Sequence[Boundary], topology: Topology) -> tuple[ServerGathering, ...]:
        if not by_rule:
            return ()
        device = topology.host_device(self.plan.destinations[by_rule[0].variable])
        return tuple(
            ServerGathering(vector=vector, device=device, task=UPDATER, name=vector.name)
            for vector in by_level(self.plan, by_rule)
        )


def _tokens(worker: int) -> str:
    return f"tokens/worker_{worker}"
