"""Replicated servers: each holds all variables, some may be faulty, and workers use their median."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.errors import UnsupportedError
from strategies.ir.graph import Node, read_variable
from strategies.ir.replica_updates import late_nodes, prior_reads
from strategies.ir.train_graph import TrainGraph
from strategies.ir.variable import Variable
from strategies.numerics.aggregators import median_of_servers
from strategies.passes.parameter_server.token_queues import tokens_down
from strategies.passes.replicate.step_copies import replica_prefix
from strategies.passes.replicate.value_arguments import with_values
from strategies.passes.robust.aggregate_gathered import with_aggregated
from strategies.passes.robust.gradient_vector import Aggregated, ServerGathering, by_level
from strategies.passes.task_plan import TaskPlan
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import Replica, Topology


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicatedServers:
    """Make the first workers servers: each holds all variables, receives all gradients and updates alone.

    A step begins with the coordinate-wise median of the servers' values of each variable that updates
    change. Its gradients go to all servers, and it ends when all of them have made their updates; no worker
    reads before. Workers that are not servers make no updates and have no slots; every worker has the
    variables that no step changes.

    Source:
        El Mhamdi et al. 2020, arXiv:1905.03853, "Genuinely distributed Byzantine machine learning"; here
        servers wait for all gradients, and workers for all servers.
    """

    name: ClassVar[str] = "replicated-servers"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        """Return the step of a worker that pulls from servers and pushes to them, or of a server.

        Raises:
            UnsupportedError: a variable is read after its update.
        """
        aggregation = self.plan.aggregation
        assert aggregation is not None
        servers = topology.replicas()[: aggregation.servers]
        (own,) = topology.local_replicas(self.plan.task)
        changed = {*(b.variable for b in graph.boundaries), *(region.variable for region in graph.regions)}
        updated = [v for v in graph.variables if v.rule is None and (v.kind == "slot" or v.name in changed)]
        reads = prior_reads(graph, updated)
        for v in updated:
            if v.handle not in reads:
                raise UnsupportedError(
                    f"variable {v.name!r}: servers={len(servers)} sends variables to workers when a step "
                    "begins, got a read after its update; leave servers out"
                )
        pulls = [v for v in updated if reads[v.handle]]
        pulled = _Pulled.of(pulls, graph, servers, own, aggregation.lying)
        nodes = list(with_values(graph, pulls, reads, pulled.values, {}))
        graph = replace(graph, graph=graph.graph.with_nodes([*nodes, *pulled.nodes]))
        added, pushes, aggregated = self._push(graph, servers, pulled, topology)
        graph = (
            with_aggregated(graph, aggregated, added)
            if own in servers
            else _without_updates(graph, updated, added)
        )
        tokens = [
            group
            for server in servers
            for group in self._tokens(server, graph.targets() if server == own else pushes, topology)
        ]
        return replace(
            graph,
            graph=graph.graph.with_nodes([*graph.graph.nodes, *(node for group in tokens for node in group)]),
            step_targets=(*graph.step_targets, *pushes, *(group[-1].name for group in tokens)),
        )

    def _tokens(self, server: Replica, after: Sequence[str], topology: Topology) -> list[tuple[Node, ...]]:
        return tokens_down(
            server.task,
            self.plan.task,
            topology.n_tasks,
            name=lambda task: f"servers/tokens/{server.rank}_to_{task}",
            device=lambda task: topology.local_replicas(task)[0].device,
            after=after,
        )

    def _push(
        self, graph: TrainGraph, servers: Sequence[Replica], pulled: "_Pulled", topology: Topology
    ) -> tuple[list[Node], list[str], list[Aggregated]]:
        """Push gradients to all servers; return nodes, ends of the pushes, and what this task combines."""
        (own,) = topology.local_replicas(self.plan.task)
        chosen = self.plan.synchronized_by("robust-servers")
        gradients = [b for b in graph.gradients() if b.variable in chosen]
        added: list[Node] = []
        pushes: list[str] = []
        combined: list[Aggregated] = []
        for vector in by_level(self.plan, gradients):
            sent = vector.sent(self.plan.task, own.device)
            added += sent.nodes
            for place, server in enumerate(servers):
                name = f"server_{place}/{vector.name}"
                gathering = ServerGathering(vector=vector, device=server.device, task=server.task, name=name)
                pushed = gathering.push(self.plan.task, sent, pulled.by_server[place])
                added += pushed
                pushes.append(pushed[-1].name)
                if server == own:
                    nodes, aggregated = gathering.take(topology, own.rank, tuple(s.rank for s in servers))
                    added += nodes
                    combined.append(aggregated)
        return added, pushes, combined


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pulled:
    """Variables that servers send to a worker.

    Attributes:
        values: variable and rank → tensor of the median. by_server: reads of each server's variables.
    """

    nodes: tuple[Node, ...]
    values: Mapping[tuple[str, int | None], str]
    by_server: tuple[tuple[str, ...], ...]

    @classmethod
    def of(
        cls,
        variables: Sequence[Variable],
        graph: TrainGraph,
        servers: Sequence[Replica],
        own: Replica,
        lying: int,
    ) -> "_Pulled":
        nodes: list[Node] = []
        values: dict[tuple[str, int | None], str] = {}
        by_server: list[list[str]] = [[] for _ in servers]
        for v in variables:
            reads = []
            for place, server in enumerate(servers):
                name = f"servers/{place}/{v.handle}"
                handle = _handle_on(graph.graph.by_name[v.handle], name, own, server)
                read = read_variable(f"{name}/told", name, v.dtype, server.device)
                nodes += [handle, read]
                reads.append(read.name)
                by_server[place].append(read.name)
            snippet = trace(
                median_of_servers, (TensorSpec(dtype=v.dtype, shape=v.shape),) * len(servers), n_lying=lying
            )
            added, (value,) = snippet.splice(f"servers/median/{v.handle}/", reads, device=own.device)
            nodes += added
            values[v.name, v.rank] = value
        return cls(nodes=tuple(nodes), values=values, by_server=tuple(map(tuple, by_server)))


def _handle_on(handle: Node, name: str, own: Replica, server: Replica) -> Node:
    """Handle of a server's copy of a variable, with this worker's name and another replica."""
    shared_name = handle.attrs.get("shared_name") or handle.name.encode()
    assert isinstance(shared_name, bytes)
    captured = shared_name.removeprefix(replica_prefix(own.rank).encode())
    there = replica_prefix(server.rank).encode() + captured
    return replace(handle, name=name, attrs={**handle.attrs, "shared_name": there}, device=server.device)


def _without_updates(graph: TrainGraph, updated: Sequence[Variable], added: Sequence[Node]) -> TrainGraph:
    late = late_nodes(graph, updated)
    handles = {v.handle for v in updated}
    names = {v.name for v in updated}
    return replace(
        graph,
        graph=graph.graph.with_nodes([*graph.graph.nodes, *added]),
        variables=tuple(v for v in graph.variables if v.handle not in handles),
        boundaries=tuple(b for b in graph.boundaries if b.variable not in names),
        regions=tuple(r for r in graph.regions if r.variable not in names),
        shared_update=(),
        state_targets=tuple(t for t in graph.state_targets if t not in late),
    )
