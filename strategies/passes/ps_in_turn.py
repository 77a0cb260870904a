"""Parameter servers whose updates wait for some workers only: bounded staleness, and backup workers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.errors import StrategyError
from strategies.ir.effects import resource_uses
from strategies.ir.graph import DType, Node, Shape, producer
from strategies.ir.late import late_nodes
from strategies.ir.train_graph import Boundary, Contribution, TrainGraph
from strategies.ir.traversal import ancestors, descendants
from strategies.numerics.updates import newest, one_more, progress, share, share_of
from strategies.passes.ps_accumulator import DOUBLE, INT64, Accumulator, accumulator_node, take_nodes
from strategies.passes.ps_queues import (
    Queue,
    check_gradients_come_first,
    joined,
    on_servers,
    turn_queue,
    waiting_for_turn,
)
from strategies.passes.rewire import contribute
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import UPDATER, Topology


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdatesInTurn:
    """Push in one turn, update in another; the update is tied to no worker's step.

    A task takes the turn when its gradients are on their servers, and pushes all of them: an update sees the
    whole of a contribution or nothing of it. A loop of its own in task 0's process waits for enough arrivals,
    takes the turn, takes all contributions that are there, and makes one optimizer step on their mean. The
    turn carries the number of updates made, by which accumulators know late contributions from timely ones.

    With `staleness` a task ends its step when no other is more than so many steps behind. With `backup` it
    ends it when there is a newer update than the one that it read; after a long step it goes on with the
    newest.

    Attributes:
        destinations: variable → task that serves it.
        staleness: steps that a task may be ahead of the slowest.
        backup: tasks that an update does not wait for.
    """

    name: ClassVar[str] = "updates-in-turn"
    task: int
    destinations: Mapping[str, int]
    staleness: int
    backup: int

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        """The step that pushes and goes on, and beside it, on the updater, the loop that updates."""
        if topology.n_tasks == 1:
            return graph
        knob = f"backup={self.backup}" if self.backup else f"staleness={self.staleness}"
        check_gradients_come_first(graph, knob)
        crossing = [b for b in graph.boundaries if b.rule != "first-replica"]
        turn = turn_queue(topology)
        accumulators = [self._accumulator(b, topology) for b in crossing]
        push = self._push(graph, accumulators, turn, topology)
        made = _Made(nodes=[turn.handle, *push.nodes], targets=[push.give], setup=[])
        if self.backup:
            steps = self._newest_step(push, made, topology)
        else:
            self._clocks(push, made, topology)
            steps = None
        apart = _Apart.of(graph, crossing)
        if self.task != UPDATER:
            own_state = [t for t in graph.state_targets if t not in apart.nodes and not _is_first(graph, t)]
            return replace(
                contribute(graph, {}, made.nodes),
                boundaries=(),
                regions=(),
                shared_update=(),
                state_targets=tuple(own_state),
                step_targets=tuple(made.targets),
                setup=(*graph.setup, *made.setup),
                progress=steps,
            )
        made.nodes += (setup := turn.put_all("first", [0]))
        made.setup.append(setup[1].name)
        return self._with_updates(graph, accumulators, apart, made, knob, topology, steps)

    def _accumulator(self, boundary: Boundary, topology: Topology) -> Accumulator:
        device = topology.host_device(self.destinations[boundary.variable])
        return Accumulator.of(boundary, device, required=1)

    def _push(
        self, graph: TrainGraph, accumulators: Sequence[Accumulator], turn: Queue, topology: Topology
    ) -> "_Push":
        """Lay everything ready on the servers, take the turn, push, give the turn back."""
        host = topology.host_device(self.task)
        reads = _reads(graph)
        nodes: list[Node] = []
        landed: list[Node] = []
        ready = []
        for a in accumulators:
            pushed = a.prepare(a.boundary.contributions[0], host)
            nodes += pushed.nodes
            waits = reads.get(a.boundary.variable, ())
            values = _landing(a, "values", pushed.values, a.dtype, waits)
            landed.append(values)
            pushed = replace(pushed, values=values.name)
            if pushed.ids is not None:
                ids = _landing(a, "ids", pushed.ids, INT64, waits)
                landed.append(ids)
                pushed = replace(pushed, ids=ids.name)
            ready.append(pushed)
        gathered = joined(((n.name, n.device) for n in landed), "turn/landed")
        take = turn.take("take", (node.name for node in gathered))
        own = _own_step(self.task, topology)
        began = own.take("began")
        step = began.name if self.backup else take.name
        pushes = []
        for a, pushed in zip(accumulators, ready, strict=True):
            constants, push = a.apply(pushed, step, [take.name])
            nodes += [a.handle, *constants]
            pushes.append(push)
        examples = sum(replica.examples for replica in topology.local_replicas(self.task))
        for handle in _tallies(topology):
            # Any number would do for an arrival.
            value, (ref,) = trace(share, (), value=examples / topology.batch_size).splice(
                f"{handle.name}/share/", [], device=handle.device
            )
            nodes += [handle, *value]
            pushes.append(
                Node(
                    name=f"{handle.name}/push",
                    op="AccumulatorApplyGradient",
                    inputs=(handle.name, step, ref, f"^{take.name}"),
                    attrs={"dtype": DOUBLE},
                    device=handle.device,
                )
            )
        done = joined(((n.name, n.device) for n in pushes), "turn/pushed")
        give = turn.put("give", take.name, (node.name for node in done))
        nodes += [*landed, *gathered, take, *pushes, *done, give]
        if self.backup:
            nodes += [own.handle, began]
        return _Push(nodes=nodes, take=take.name, give=give.name, began=began.name)

    def _clocks(self, push: "_Push", made: "_Made", topology: Topology) -> None:
        """One tick to every other task for a step made; one from each before the next begins."""
        for other in range(topology.n_tasks):
            if other == self.task:
                continue
            outgoing = _clock(self.task, other, topology)
            tick = outgoing.put("tick", push.take, [push.give])
            incoming = _clock(other, self.task, topology)
            wait = incoming.take("wait", [push.give])
            made.nodes += [outgoing.handle, tick, incoming.handle, wait]
            made.targets += [tick.name, wait.name]
            first = incoming.put_all("first", [0] * self.staleness)
            made.nodes += first
            made.setup.append(first[1].name)

    def _newest_step(self, push: "_Push", made: "_Made", topology: Topology) -> str:
        """Wait for an update newer than the step, and begin the next one with the newest.

        Returns:
            tensor of the step come to and whether this one's contribution was late.
        """
        tokens, own = _tokens(self.task, topology), _own_step(self.task, topology)
        host = own.handle.device
        first = tokens.take("await", [push.give])
        size, rest = tokens.take_rest("rest", [first.name])
        count, (step,) = trace(newest, (TensorSpec(dtype=INT64),) * 2).splice(
            f"{own.handle.name}/newest/", [first.name, rest.name], device=host
        )
        keep = own.put("keep", step)
        told, (steps,) = trace(progress, (TensorSpec(dtype=INT64, shape=Shape(())),) * 3).splice(
            f"{own.handle.name}/progress/", [step, push.began, push.take], device=host
        )
        begin = own.put_all("first", [0])
        made.nodes += [tokens.handle, first, size, rest, *count, keep, *told, *begin]
        made.targets.append(keep.name)
        made.setup.append(begin[1].name)
        return steps

    def _with_updates(
        self,
        graph: TrainGraph,
        accumulators: Sequence[Accumulator],
        apart: "_Apart",
        made: "_Made",
        knob: str,
        topology: Topology,
        steps: str | None,
    ) -> TrainGraph:
        """The updater's step, and the loop beside it."""
        turn = turn_queue(topology)
        arrivals, shares = _tallies(topology)
        arrive = take_nodes(
            arrivals,
            f"{arrivals.name}/take",
            topology.n_tasks - self.backup if self.backup else 1,
            DOUBLE,
            (),
        )
        begin = turn.take("updates", [arrive[-1].name])
        taken = Node(
            name=f"{shares.name}/taken",
            op="AccumulatorNumAccumulated",
            inputs=(shares.name, f"^{begin.name}"),
            device=shares.device,
        )
        total = take_nodes(shares, f"{shares.name}/take", 1, DOUBLE, [taken.name])
        nodes = [*arrive, begin, taken, *total]
        combined: dict[str, Contribution] = {}
        for a in accumulators:
            added, contribution = a.take([begin.name])
            nodes += added
            if a.boundary.rule == "mean":
                specs = (TensorSpec(dtype=a.boundary.dtype), TensorSpec(dtype=DOUBLE))
                scale, (values,) = trace(share_of, specs).splice(
                    f"{a.handle.name}/share/", [contribution.values, total[-1].name], device=a.device
                )
                nodes += scale
                contribution = replace(contribution, values=values)
            combined[a.boundary.values] = contribution
        targets = tuple(t for t in graph.targets() if t in apart.nodes)
        count, (n_updates,) = trace(one_more, (TensorSpec(dtype=INT64),)).splice(
            "turn/count/", [begin.name], device=begin.device
        )
        done = joined(on_servers(graph, targets, self.destinations, topology), "turn/updated")
        after = [node.name for node in done]
        gives = [turn.put("give_after_update", n_updates, after)]
        if self.backup:
            for task in range(topology.n_tasks):
                tokens = _tokens(task, topology)
                gives.append(tokens.put("give", n_updates, after))
                if task != self.task:
                    nodes.append(tokens.handle)
        nodes += [*count, *done, *gives]
        graph = apart.cut(graph)
        graph = replace(graph, graph=graph.graph.with_nodes(waiting_for_turn(graph, apart.nodes, begin.name)))
        step = contribute(graph, combined, [*made.nodes, *nodes])
        background = (*targets, *(node.name for node in gives))
        _check_needs_no_batch(step, background, knob)
        return replace(
            step,
            step_targets=tuple(made.targets),
            setup=(*graph.setup, *made.setup),
            background=background,
            taken=taken.name,
            progress=steps,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Push:
    """Nodes that push, and the names of what others wait for."""

    nodes: list[Node]
    take: str
    give: str
    began: str


@dataclass(slots=True, kw_only=True)
class _Made:
    """What a task's step gets besides."""

    nodes: list[Node]
    targets: list[str]
    setup: list[str]


@dataclass(frozen=True, slots=True)
class _Apart:
    """The nodes of a step that belong to updates, which run beside the steps of workers."""

    nodes: frozenset[str]

    @classmethod
    def of(cls, graph: TrainGraph, crossing: Iterable[Boundary]) -> "_Apart":
        """What comes after these boundaries, and the rest of the update side."""
        crossed = [name for b in crossing for name in (b.values, b.indices) if name is not None]
        return cls(frozenset(descendants(graph.graph, [*crossed, *graph.update_nodes()])))

    def cut(self, graph: TrainGraph) -> TrainGraph:
        """The step in which updates no longer wait for reads: those belong to another run of the graph."""
        nodes = [
            replace(node, inputs=tuple(r for r in node.inputs if r[0] != "^" or r[1:] in self.nodes))
            if node.name in self.nodes and any(c not in self.nodes for c in node.control_inputs)
            else node
            for node in graph.graph.nodes
        ]
        return replace(graph, graph=graph.graph.with_nodes(nodes))


def _check_needs_no_batch(graph: TrainGraph, background: Iterable[str], knob: str) -> None:
    fed = {b.node for b in graph.batch}
    for target in background:
        reached = fed & ancestors(graph.graph, [target])
        if reached:
            raise StrategyError(
                f"node {target!r}: with {knob} updates come apart from the batch, got one that needs "
                f"{min(reached)!r} past the gradients; leave {knob.partition('=')[0]} out"
            )


def _is_first(graph: TrainGraph, target: str) -> bool:
    first = {b.values for b in graph.boundaries if b.rule == "first-replica"}
    return not first.isdisjoint(map(producer, graph.graph.by_name[target].inputs))


def _reads(graph: TrainGraph) -> dict[str, list[str]]:
    """Variable → its reads by forward and backward."""
    shared = [v for v in graph.variables if v.rank is None]
    apart = late_nodes(graph, shared) | graph.update_nodes() | {v.read for v in shared}
    uses = resource_uses(graph.graph)
    return {v.name: [r for r in uses[v.handle].reads if r not in apart] for v in shared}


def _landing(a: Accumulator, part: str, ref: str, dtype: DType, waits: Iterable[str]) -> Node:
    return Node(
        name=f"{a.handle.name}/landed_{part}",
        op="Identity",
        inputs=(ref, *(f"^{name}" for name in waits)),
        attrs={"T": dtype},
        device=a.device,
    )


def _tallies(topology: Topology) -> tuple[Node, Node]:
    """What says that a contribution is whole, and what adds up the contributions' shares of the batch."""
    device = topology.host_device(UPDATER)
    names = ("tallies/arrivals", "tallies/shares")
    arrivals, shares = (accumulator_node(name, DOUBLE, Shape(()), device) for name in names)
    return arrivals, shares


def _clock(giver: int, taker: int, topology: Topology) -> Queue:
    return Queue.of(f"clocks/{giver}_to_{taker}", topology.host_device(taker))


def _tokens(task: int, topology: Topology) -> Queue:
    return Queue.of(f"tokens/worker_{task}", topology.host_device(UPDATER))


def _own_step(task: int, topology: Topology) -> Queue:
    return Queue.of(f"steps/worker_{task}", topology.host_device(task))
