"""Updates in the background of steps: bounded staleness and backup workers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.ir.graph import Node, Shape, producer
from strategies.ir.train_graph import Boundary, TrainGraph
from strategies.numerics.combine import newest, progress
from strategies.passes.parameter_server.accumulator import INT64, Accumulator
from strategies.passes.parameter_server.background_updates import (
    BackgroundUpdates,
    PushInTurn,
    push_in_turn,
    tokens_of,
    update_side,
)
from strategies.passes.parameter_server.token_queues import check_gradients_come_first, turn_queue
from strategies.passes.replicate.rewire import contribute
from strategies.passes.task_plan import TaskPlan
from strategies.passes.tensor_queue import TensorQueue
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import UPDATER, Topology


@dataclass(frozen=True, kw_only=True, slots=True)
class SemiSyncUpdates:
    """Push in one turn and update in another; the update belongs to no worker's step.

    A task takes the turn when its gradients are on their servers, and pushes all of them: an update sees the
    whole of a contribution or nothing of it. A loop of its own in task 0's process waits for enough arrivals,
    takes the turn, takes all contributions that are there, and makes one optimizer step on their mean. The
    turn carries the number of updates made, by which accumulators know late contributions from timely ones.

    With `staleness`, a task ends its step when no other task is more than `staleness` steps behind. With
    `backup`, it ends its step when there is an update newer than the one that it read; after a long step it
    continues with the newest.
    """

    name: ClassVar[str] = "semi-sync-ps"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        if topology.n_tasks == 1:
            return graph
        execution = self.plan.execution
        backup = execution.backup
        knob = f"backup={backup}" if backup else f"staleness={execution.staleness}"
        check_gradients_come_first(graph, knob)
        crossing = [b for b in graph.boundaries if b.rule != "first-replica"]
        accumulators = [self._accumulator(b, topology) for b in crossing]
        began = _own_step(self.plan.task, topology).take("began").name if backup else None
        push = push_in_turn(graph, accumulators, self.plan.task, topology, step=began)
        end = self._newest_step(push, topology) if backup else self._clocks(push, topology)
        nodes, setup = [*push.nodes, *end.nodes], [*graph.setup, *end.setup]
        if self.plan.task == UPDATER:
            no_updates, first_turn = turn_queue(topology).put_numbers("first", [0])
            nodes += [no_updates, first_turn]
            setup.append(first_turn.name)
            loop = BackgroundUpdates(destinations=self.plan.destinations, backup=backup, knob=knob)
            step = loop.beside(graph, accumulators, nodes, topology)
        else:
            step = _without_updates(graph, accumulators, nodes)
        return replace(
            step,
            step_targets=(push.give, *end.targets),
            setup=tuple(setup),
            progress=end.progress,
        )

    def _accumulator(self, boundary: Boundary, topology: Topology) -> Accumulator:
        device = topology.host_device(self.plan.destinations[boundary.variable])
        return Accumulator.of(boundary, device, required=1)

    def _clocks(self, push: PushInTurn, topology: Topology) -> "_EndOfStep":
        """Send one tick to every other task after a step, and wait for one from each before the next step."""
        nodes: list[Node] = []
        targets: list[str] = []
        setup: list[str] = []
        for other in range(topology.n_tasks):
            if other == self.plan.task:
                continue
            outgoing = _clock(self.plan.task, other, topology)
            tick = outgoing.put("tick", [push.take], [push.give])
            incoming = _clock(other, self.plan.task, topology)
            wait = incoming.take("wait", [push.give])
            ahead, first = incoming.put_numbers("first", [0] * self.plan.execution.staleness)
            nodes += [outgoing.handle, tick, incoming.handle, wait, ahead, first]
            targets += [tick.name, wait.name]
            setup.append(first.name)
        return _EndOfStep(nodes=tuple(nodes), targets=tuple(targets), setup=tuple(setup))

    def _newest_step(self, push: PushInTurn, topology: Topology) -> "_EndOfStep":
        """Wait for an update newer than the step, and start the next step with the newest one."""
        tokens, own = tokens_of(self.plan.task, topology), _own_step(self.plan.task, topology)
        host = own.handle.device
        began = own.take("began")
        first = tokens.take("await", [push.give])
        size, rest = tokens.take_rest("rest", [first.name])
        count, (step,) = trace(newest, (TensorSpec(dtype=INT64),) * 2).splice(
            f"{own.handle.name}/newest/", [first.name, rest.name], device=host
        )
        keep = own.put("keep", [step])
        report, (steps,) = trace(progress, (TensorSpec(dtype=INT64, shape=Shape(())),) * 3).splice(
            f"{own.handle.name}/progress/", [step, began.name, push.take], device=host
        )
        zero, begin = own.put_numbers("first", [0])
        return _EndOfStep(
            nodes=(own.handle, began, tokens.handle, first, size, rest, *count, keep, *report, zero, begin),
            targets=(keep.name,),
            setup=(begin.name,),
            progress=steps,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _EndOfStep:
    """Work of a task between its push and the end of its step.

    Attributes:
        targets: nodes to run in a step.
        setup: nodes to run once, before the first step.
        progress: tensor [2] of the reached step, and 1 if this contribution was late.
    """

    nodes: tuple[Node, ...]
    targets: tuple[str, ...]
    setup: tuple[str, ...]
    progress: str | None = None


def _without_updates(
    graph: TrainGraph, accumulators: Sequence[Accumulator], added: Sequence[Node]
) -> TrainGraph:
    """Step of a task that only pushes, with nodes added; the updater's loop makes the updates."""
    updates = update_side(graph, accumulators)
    own_state = [t for t in graph.state_targets if t not in updates and not _is_first(graph, t)]
    return replace(
        contribute(graph, {}, added),
        boundaries=(),
        regions=(),
        shared_update=(),
        state_targets=tuple(own_state),
    )


def _is_first(graph: TrainGraph, target: str) -> bool:
    first = {b.values for b in graph.boundaries if b.rule == "first-replica"}
    return not first.isdisjoint(map(producer, graph.graph.by_name[target].inputs))


def _clock(giver: int, taker: int, topology: Topology) -> TensorQueue:
    return TensorQueue.of_numbers(f"clocks/{giver}_to_{taker}", topology.host_device(taker))


def _own_step(task: int, topology: Topology) -> TensorQueue:
    return TensorQueue.of_numbers(f"steps/worker_{task}", topology.host_device(task))
