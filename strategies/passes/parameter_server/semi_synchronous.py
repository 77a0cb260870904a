"""Updates in the background of steps: bounded staleness and backup workers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.ir.graph import Node, Shape, producer, tensor
from strategies.ir.train_graph import Boundary, TrainGraph
from strategies.numerics.combine import newest, progress
from strategies.numerics.waiting import count_step, register, register_wait, wake
from strategies.passes.parameter_server.accumulator import INT64, Accumulator
from strategies.passes.parameter_server.background_updates import (
    BackgroundUpdates,
    PushInTurn,
    push_in_turn,
    update_side,
    waiting_queue,
)
from strategies.passes.parameter_server.token_queues import check_gradients_come_first, turn_queue
from strategies.passes.replicate.rewire import contribute
from strategies.passes.task_plan import TaskPlan
from strategies.passes.tensor_queue import HANDLE, INT32, TensorQueue
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import UPDATER, Topology


@dataclass(frozen=True, kw_only=True, slots=True)
class SemiSyncUpdates:
    """Push in one turn and update in another; the update belongs to no worker's step.

    A task takes the turn when its gradients are on their servers, and pushes all of them: an update sees the
    whole of a contribution or nothing of it. A loop of its own in task 0's process waits for enough arrivals,
    takes the turn, takes all contributions that are there, and makes one optimizer step on their mean. The
    turn carries the number of updates made, by which accumulators know late contributions from timely ones.

    With `staleness`, a task ends its step when no other task is more than `staleness` steps behind: the turn
    carries all tasks' completed steps. With `backup`, it ends its step when there is an update newer than the
    one that it read; after a long step it continues with the newest. The turn carries the number of tasks
    that wait. A task that must wait leaves the handle of its mailbox in a queue, and the task that
    releases it puts a number there, so that no graph has a node for each other task.
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
        n_tasks = topology.n_tasks
        turn = turn_queue(topology, Shape(()) if backup else Shape((n_tasks,)))
        push = push_in_turn(graph, accumulators, self.plan.task, topology, turn, step=began)
        end = self._newest_step(push, turn, topology) if backup else self._clocks(push, turn, topology)
        nodes, setup = [*push.nodes, *end.nodes], [*graph.setup, *end.setup]
        if self.plan.task == UPDATER:
            first = turn.put_numbers("first", [0], [0] if backup else [[0] * n_tasks])
            nodes += first
            setup.append(first[-1].name)
            loop = BackgroundUpdates(turn=turn, destinations=self.plan.destinations, backup=backup, knob=knob)
            step = loop.beside(graph, accumulators, nodes, topology)
        else:
            step = _without_updates(graph, accumulators, nodes)
        return replace(step, step_targets=end.targets, setup=tuple(setup), progress=end.progress)

    def _accumulator(self, boundary: Boundary, topology: Topology) -> Accumulator:
        device = topology.host_device(self.plan.destinations[boundary.variable])
        return Accumulator.of(boundary, device, required=1)

    def _clocks(self, push: PushInTurn, turn: TensorQueue, topology: Topology) -> "_EndOfStep":
        """Count the step, wake those that waited for this task, and wait if the slowest is too far behind."""
        n, device = topology.n_tasks, turn.handle.device
        snippet = trace(
            count_step,
            (TensorSpec(dtype=INT64, shape=Shape((n,))),),
            task=self.plan.task,
            staleness=self.plan.execution.staleness,
        )
        count, (clocks, n_released, waits) = snippet.splice(
            f"{turn.handle.name}/tick/", [tensor(push.take, 1)], device=device
        )
        register, wait = self._waiting(waits, push, topology)
        give = turn.put("give", [push.take, clocks], [*push.done, *wait.control_inputs])
        waiting = waiting_queue(topology)
        specs = (TensorSpec(dtype=HANDLE), TensorSpec(dtype=INT32), TensorSpec(dtype=INT64))
        release, (done,) = trace(wake, specs).splice(
            f"{waiting.handle.name}/wake/",
            [waiting.handle.name, n_released, push.take],
            device=device,
            control=[give.name],
        )
        return _EndOfStep(
            nodes=(*count, *register, give, *release, wait),
            targets=(give.name, done.removeprefix("^"), wait.name),
            setup=(),
        )

    def _newest_step(self, push: PushInTurn, turn: TensorQueue, topology: Topology) -> "_EndOfStep":
        """Wait for an update newer than the step, and start the next step with an update's number.

        It is the newest one's if the worker did not wait, else that of the update that ended the wait.
        """
        own = _own_step(self.plan.task, topology)
        began, device = own.take("began"), turn.handle.device
        count, (n_waiting, waits) = trace(
            register_wait, (TensorSpec(dtype=INT64, shape=Shape(())),) * 3
        ).splice(f"{turn.handle.name}/seen/", [began.name, push.take, tensor(push.take, 1)], device=device)
        register, wait = self._waiting(waits, push, topology)
        give = turn.put("give", [push.take, n_waiting], [*push.done, *wait.control_inputs])
        newer, (step,) = trace(newest, (TensorSpec(dtype=INT64),) * 2).splice(
            f"{own.handle.name}/newest/", [push.take, wait.name], device=own.handle.device
        )
        keep = own.put("keep", [step])
        report, (steps,) = trace(progress, (TensorSpec(dtype=INT64, shape=Shape(())),) * 3).splice(
            f"{own.handle.name}/progress/", [step, began.name, push.take], device=own.handle.device
        )
        zero, begin = own.put_numbers("first", [0])
        return _EndOfStep(
            nodes=(own.handle, began, *count, *register, give, wait, *newer, keep, *report, zero, begin),
            targets=(give.name, keep.name),
            setup=(begin.name,),
            progress=steps,
        )

    def _waiting(self, waits: str, push: PushInTurn, topology: Topology) -> tuple[tuple[Node, ...], Node]:
        """Nodes that leave this task's mailbox if it must wait, and the wait, which comes after them.

        Args:
            waits: tensor, 1 if the task must wait, else 0.
        """
        waiting = waiting_queue(topology)
        mailbox = TensorQueue.of_numbers(f"mailboxes/worker_{self.plan.task}", waiting.handle.device)
        specs = (TensorSpec(dtype=HANDLE), TensorSpec(dtype=HANDLE), TensorSpec(dtype=INT32))
        nodes, (left,) = trace(register, specs).splice(
            f"{mailbox.handle.name}/register/",
            [waiting.handle.name, mailbox.handle.name, waits],
            device=waiting.handle.device,
            control=[push.take],
        )
        wait = mailbox.take_several("await", waits, [left.removeprefix("^")])
        return (waiting.handle, mailbox.handle, *nodes), wait


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


def _own_step(task: int, topology: Topology) -> TensorQueue:
    return TensorQueue.of_numbers(f"steps/worker_{task}", topology.host_device(task))
