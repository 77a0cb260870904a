"""Asynchronous parameter servers: each task updates with its own gradients, in its own step."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.ir.graph import Node, join_per_device
from strategies.ir.replica_updates import late_nodes
from strategies.ir.train_graph import TrainGraph
from strategies.numerics.combine import one_more
from strategies.passes.parameter_server.accumulator import INT64
from strategies.passes.parameter_server.token_queues import (
    check_gradients_come_first,
    on_servers,
    turn_queue,
    waiting_for_turn,
)
from strategies.passes.task_plan import TaskPlan
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import UPDATER, Topology


@dataclass(frozen=True, kw_only=True, slots=True)
class AsyncUpdates:
    """Apply this task's gradients in its own step, exclusively: no update reads half-written values.

    Gradients are on their servers before the task requests its turn, so that it never blocks others while it
    computes or sends.
    """

    name: ClassVar[str] = "async-updates"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        if topology.n_tasks == 1:
            return graph
        check_gradients_come_first(graph, "sync=false")
        graph = replace(graph, state_targets=tuple(self._state_targets(graph)))
        turn = turn_queue(topology)
        arrived = (
            (name, topology.host_device(self.plan.destinations[b.variable]))
            for b in graph.boundaries
            for name in (b.values, b.indices)
            if name is not None
        )
        landed = join_per_device(arrived, "turn/landed")
        take = turn.take("take", (node.name for node in landed))
        late = late_nodes(graph, [v for v in graph.variables if v.rank is None])
        within = late | graph.update_nodes()
        nodes = waiting_for_turn(graph, within, take.name)
        counted, (n_updates,) = trace(one_more, (TensorSpec(dtype=INT64),)).splice(
            "turn/count/", [take.name], device=take.device
        )
        targets = [target for target in graph.targets() if target in within]
        done = join_per_device(on_servers(graph, targets, self.plan.destinations, topology), "turn/done")
        give = turn.put("give", [n_updates], (node.name for node in done))
        setup = turn.put_numbers("first", [0]) if self.plan.task == UPDATER else ()
        added = [turn.handle, *landed, take, *counted, *done, give, *setup]
        return replace(
            graph,
            graph=graph.graph.with_nodes([*nodes, *added]),
            step_targets=(*graph.step_targets, give.name),
            setup=(*graph.setup, *(node.name for node in setup[1:])),
        )

    def _state_targets(self, graph: TrainGraph) -> Iterable[str]:
        foreign = {b.values for b in graph.boundaries if b.rule == "first-replica"}
        for target in graph.state_targets:
            node: Node = graph.graph.by_name[target]
            if self.plan.task == UPDATER or foreign.isdisjoint(node.data_inputs):
                yield target
