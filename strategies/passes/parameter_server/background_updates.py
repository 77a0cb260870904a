"""Update loop in the background of steps, and pushes that take turns with it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from strategies.errors import StrategyError
from strategies.ir.control_flow import LoopFrames
from strategies.ir.graph import DType, Node, Shape, identity, join_per_device, tensor
from strategies.ir.replica_updates import late_nodes
from strategies.ir.resource_uses import resource_uses
from strategies.ir.tensor_proto import const
from strategies.ir.train_graph import Contribution, TrainGraph
from strategies.ir.traversal import ancestors, descendants
from strategies.numerics.combine import one_more, share, share_of
from strategies.numerics.waiting import wake
from strategies.passes.parameter_server.accumulator import (
    DOUBLE,
    INT64,
    Accumulator,
    Pushed,
    accumulator_node,
    push_node,
    take_nodes,
)
from strategies.passes.parameter_server.token_queues import on_servers, waiting_for_turn
from strategies.passes.replicate.rewire import contribute
from strategies.passes.tensor_queue import HANDLE, TensorQueue
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import UPDATER, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundUpdates:
    """Updates that take turns with the workers' pushes, in the background of the updater's own steps.

    Attributes:
        turn: queue of the turn, with a second tensor; see `SemiSyncUpdates`.
        destinations: variable → task that serves it.
        backup: number of tasks that an update does not wait for; 0 takes the contributions that have arrived.
        knob: knob that requires the loop, in the user's notation, for error messages.
    """

    turn: TensorQueue
    destinations: Mapping[str, int]
    backup: int
    knob: str

    def beside(
        self,
        graph: TrainGraph,
        accumulators: Sequence[Accumulator],
        added: Sequence[Node],
        topology: Topology,
    ) -> TrainGraph:
        """Add nodes to the updater's step, and the loop in its background.

        Args:
            accumulators: one accumulator per boundary that crosses replicas.
            added: nodes of the step.
        Raises:
            StrategyError: an update needs the batch.
        """
        take = self._take(accumulators, topology)
        updates = update_side(graph, accumulators)
        targets = tuple(t for t in graph.targets() if t in updates)
        done = join_per_device(on_servers(graph, targets, self.destinations, topology), "turn/updated")
        reports, gives = self._report(take.begin, [node.name for node in done], topology)
        graph = _without_waits_for_reads(graph, updates)
        graph = replace(
            graph, graph=graph.graph.with_nodes(waiting_for_turn(graph, updates, take.begin.name))
        )
        step = contribute(graph, take.combined, [*added, *take.nodes, *reports, *done, *gives])
        background = (*targets, *(node.name for node in gives))
        self._check_needs_no_batch(step, background)
        return replace(step, background=background, n_taken=take.n_taken)

    def _take(self, accumulators: Sequence[Accumulator], topology: Topology) -> "_Contributions":
        arrivals, shares = tallies(topology)
        n_needed = topology.n_tasks - self.backup if self.backup else 1
        arrive = take_nodes(arrivals, f"{arrivals.name}/take", n_needed, DOUBLE, ())
        begin = self.turn.take("updates", [arrive[-1].name])
        n_taken = Node(
            name=f"{shares.name}/taken",
            op="AccumulatorNumAccumulated",
            inputs=(shares.name,),
            device=shares.device,
        ).waiting_for(begin.name)
        total = take_nodes(shares, f"{shares.name}/take", 1, DOUBLE, [n_taken.name])
        nodes = [*arrive, begin, n_taken, *total]
        combined: dict[str, Contribution] = {}
        for a in accumulators:
            mean_nodes, combined[a.boundary.values] = _mean(a, begin, total[-1])
            nodes += mean_nodes
        return _Contributions(nodes=tuple(nodes), begin=begin, n_taken=n_taken.name, combined=combined)

    def _report(self, begin: Node, after: Sequence[str], topology: Topology) -> tuple[list[Node], list[Node]]:
        """Count an update, give the turn back, and wake the tasks that wait for an update.

        Args:
            begin: node with the number of updates before this one, and the turn's second tensor.
            after: last nodes of the update.
        Returns:
            Nodes to add, and nodes that signal the end.
        """
        count, (n_updates,) = trace(one_more, (TensorSpec(dtype=INT64),)).splice(
            "turn/count/", [begin.name], device=begin.device
        )
        second = tensor(begin.name, 1)
        if not self.backup:
            return [*count], [self.turn.put("give_after_update", [n_updates, second], after)]
        none = const(f"{self.turn.handle.name}/none", INT64, 0, device=begin.device)
        give = self.turn.put("give_after_update", [n_updates, none.name], after)
        waiting = waiting_queue(topology)
        release, (done,) = trace(wake, (TensorSpec(dtype=HANDLE), *(TensorSpec(dtype=INT64),) * 2)).splice(
            f"{waiting.handle.name}/wake/",
            [waiting.handle.name, second, n_updates],
            device=begin.device,
            control=after,
        )
        last = next(node for node in release if node.name == done.removeprefix("^"))
        # The updater's own step registers, and has the queue already.
        return [*count, none, *(node for node in release if node is not last)], [give, last]

    def _check_needs_no_batch(self, graph: TrainGraph, background: Sequence[str]) -> None:
        fed = {b.node for b in graph.batch}
        for target in background:
            reached = fed & ancestors(graph.graph, [target])
            if reached:
                raise StrategyError(
                    f"node {target!r}: with {self.knob} updates come apart from the batch, got one that "
                    f"needs {min(reached)!r} past the gradients; leave {self.knob.partition('=')[0]} out"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Contributions:
    """Contributions that an update takes from servers.

    Attributes:
        begin: node that takes the turn and returns the number of updates made.
        n_taken: tensor of the number of contributions.
        combined: `Boundary.values` → mean of its contributions.
    """

    nodes: tuple[Node, ...]
    begin: Node
    n_taken: str
    combined: Mapping[str, Contribution]


def update_side(graph: TrainGraph, accumulators: Sequence[Accumulator]) -> frozenset[str]:
    """Nodes that belong to updates: successors of these boundaries, and the rest of the update side."""
    crossing = [a.boundary for a in accumulators]
    crossed = [name for b in crossing for name in (b.values, b.indices) if name is not None]
    return frozenset(descendants(graph.graph, [*crossed, *graph.update_nodes()]))


def tallies(topology: Topology) -> tuple[Node, Node]:
    """Additional accumulators, into which every contribution is pushed as well.

    Returns:
        One with which the loop waits for whole contributions, and one of their shares of the batch.
    """
    device = topology.host_device(UPDATER)
    names = ("tallies/arrivals", "tallies/shares")
    arrivals, shares = (accumulator_node(name, DOUBLE, Shape(()), device) for name in names)
    return arrivals, shares


def waiting_queue(topology: Topology) -> TensorQueue:
    """Queue of the mailboxes of tasks that wait, in the order in which they began to."""
    return TensorQueue.of_handles("waiting", topology.host_device(UPDATER))


def _mean(a: Accumulator, begin: Node, total: Node) -> tuple[Sequence[Node], Contribution]:
    """Mean of all contributions to a boundary, weighted by examples.

    Args:
        total: sum of the contributions' shares of the batch.
    """
    nodes, contribution = a.take([begin.name])
    if a.boundary.rule != "mean":
        return nodes, contribution
    specs = (TensorSpec(dtype=a.boundary.dtype), TensorSpec(dtype=DOUBLE))
    scale, (values,) = trace(share_of, specs).splice(
        f"{a.handle.name}/share/", [contribution.values, total.name], device=a.device
    )
    return [*nodes, *scale], replace(contribution, values=values)


def _without_waits_for_reads(graph: TrainGraph, apart: frozenset[str]) -> TrainGraph:
    """Step in which updates no longer wait for reads, because reads belong to another run of the graph."""
    nodes = [
        node.changed(inputs=tuple(r for r in node.inputs if r[0] != "^" or r[1:] in apart))
        if node.name in apart and any(c not in apart for c in node.control_inputs)
        else node
        for node in graph.graph.nodes
    ]
    return replace(graph, graph=graph.graph.with_nodes(nodes))


@dataclass(frozen=True, slots=True, kw_only=True)
class PushInTurn:
    """Nodes that take the turn and push.

    Attributes:
        take: node that takes the turn; returns the number of updates made, and the turn's second tensor.
        done: nodes that run once everything is pushed.
    """

    nodes: tuple[Node, ...]
    take: str
    done: tuple[str, ...]


def push_in_turn(
    graph: TrainGraph,
    accumulators: Sequence[Accumulator],
    task: int,
    topology: Topology,
    turn: TensorQueue,
    *,
    step: str | None,
) -> PushInTurn:
    """Copy everything to the servers, take the turn and push.

    Args:
        accumulators: one accumulator per boundary that crosses replicas.
        step: tensor of the number of updates at the start of the step; a contribution to an older one is
            dropped. None for the number at the turn, so that nothing is dropped.
    """
    reads = _reads(graph)
    host = topology.host_device(task)
    prepared: list[Node] = []
    landed: list[Node] = []
    ready = []
    for a in accumulators:
        pushed = a.prepare(a.boundary.contributions[0], host)
        prepared += pushed.nodes
        pushed, arrived = _on_server(a, pushed, reads.get(a.boundary.variable, ()))
        landed += arrived
        ready.append(pushed)
    gathered = join_per_device(((n.name, n.device) for n in landed), "turn/landed")
    take = turn.take("take", (node.name for node in gathered))
    step = take.name if step is None else step
    constants, pushes = _pushes(accumulators, ready, step, take.name)
    shares, tallied = _tallied(task, step, take.name, topology)
    pushes += tallied
    done = join_per_device(((n.name, n.device) for n in pushes), "turn/pushed")
    nodes = (turn.handle, *prepared, *constants, *shares, *landed, *gathered, take, *pushes, *done)
    return PushInTurn(nodes=nodes, take=take.name, done=tuple(node.name for node in done))


def _reads(graph: TrainGraph) -> dict[str, tuple[str, ...]]:
    """Variable → its reads by forward and backward, or the ends of the loops that contain them."""
    shared = [v for v in graph.variables if v.rank is None]
    apart = late_nodes(graph, shared) | graph.update_nodes() | {v.read for v in shared}
    uses, loops = resource_uses(graph.graph), LoopFrames.of(graph.graph)
    return {v.name: loops.outside(r for r in uses[v.handle].reads if r not in apart) for v in shared}


def _on_server(a: Accumulator, pushed: Pushed, after: Sequence[str]) -> tuple[Pushed, list[Node]]:
    values = _landing(a, "values", pushed.values, a.dtype, after)
    if pushed.ids is None:
        return replace(pushed, values=values.name), [values]
    ids = _landing(a, "ids", pushed.ids, INT64, after)
    return replace(pushed, values=values.name, ids=ids.name), [values, ids]


def _landing(a: Accumulator, part: str, ref: str, dtype: DType, after: Iterable[str]) -> Node:
    return identity(f"{a.handle.name}/landed_{part}", ref, dtype, a.device, after)


def _pushes(
    accumulators: Sequence[Accumulator], ready: Sequence[Pushed], step: str, take: str
) -> tuple[list[Node], list[Node]]:
    """Accumulators with the constants of their pushes, and the pushes, which wait for the turn."""
    constants: list[Node] = []
    pushes = []
    for a, pushed in zip(accumulators, ready, strict=True):
        before, push = a.apply_after_others(pushed, step, [take])
        constants += [a.handle, *before]
        pushes.append(push)
    return constants, pushes


def _tallied(task: int, step: str, take: str, topology: Topology) -> tuple[list[Node], list[Node]]:
    """Tallies with the task's share of the batch, and the pushes that add it to them."""
    examples = sum(replica.examples for replica in topology.local_replicas(task))
    nodes: list[Node] = []
    pushes = []
    for handle in tallies(topology):
        # Any number would do for an arrival.
        spliced, (ref,) = trace(share, (), value=examples / topology.batch_size).splice(
            f"{handle.name}/share/", [], device=handle.device
        )
        nodes += [handle, *spliced]
        pushes.append(push_node(handle, step, ref, DOUBLE, [take]))
    return nodes, pushes
