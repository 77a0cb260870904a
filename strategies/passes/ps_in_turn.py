"""Parameter servers whose updates wait for some workers only: bounded staleness, and backup workers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.ir.effects import resource_uses
from strategies.ir.graph import DType, Node, Shape, producer
from strategies.ir.late import late_nodes
from strategies.ir.train_graph import Boundary, TrainGraph
from strategies.numerics.updates import newest, progress, share
from strategies.passes.ps_accumulator import DOUBLE, INT64, Accumulator
from strategies.passes.ps_queues import Queue, check_gradients_come_first, joined, turn_queue
from strategies.passes.ps_update_loop import UpdateLoop, tallies, tokens_of, update_side
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
        turn = turn_queue(topology)
        crossing = [b for b in graph.boundaries if b.rule != "first-replica"]
        accumulators = [self._accumulator(b, topology) for b in crossing]
        push = self._push(graph, accumulators, turn, topology)
        made = _Made(nodes=[turn.handle, *push.nodes], targets=[push.give], setup=[])
        if self.backup:
            steps = self._newest_step(push, made, topology)
        else:
            self._clocks(push, made, topology)
            steps = None
        loop = UpdateLoop(destinations=self.destinations, backup=self.backup, knob=knob)
        if self.task == UPDATER:
            made.nodes += (setup := turn.put_all("first", [0]))
            made.setup.append(setup[1].name)
            step = loop.beside(graph, accumulators, made.nodes, topology)
        else:
            apart = update_side(graph, accumulators)
            own_state = [t for t in graph.state_targets if t not in apart and not _is_first(graph, t)]
            step = replace(
                contribute(graph, {}, made.nodes),
                boundaries=(),
                regions=(),
                shared_update=(),
                state_targets=tuple(own_state),
            )
        return replace(
            step,
            step_targets=tuple(made.targets),
            setup=(*graph.setup, *made.setup),
            progress=steps,
        )

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
        for handle in tallies(topology):
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
        tokens, own = tokens_of(self.task, topology), _own_step(self.task, topology)
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


def _clock(giver: int, taker: int, topology: Topology) -> Queue:
    return Queue.of(f"clocks/{giver}_to_{taker}", topology.host_device(taker))


def _own_step(task: int, topology: Topology) -> Queue:
    return Queue.of(f"steps/worker_{task}", topology.host_device(task))
