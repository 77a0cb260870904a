"""Local SGD: replicas update independently, and their variables are averaged periodically."""

from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.ir.graph import Node, assign_variable, identity, join_per_device, read_variable
from strategies.ir.train_graph import Boundary, Contribution, TrainGraph
from strategies.ir.variable import Variable
from strategies.numerics.combine import every
from strategies.numerics.compressors import StateSpec
from strategies.passes.replicate.state_variables import StateVariable
from strategies.passes.replicate.step_copies import replica_prefix
from strategies.passes.task_plan import TaskPlan
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import Replica, Topology

_COUNT = StateSpec(name="steps", dims=(), dtype="int64")


@dataclass(frozen=True, kw_only=True, slots=True)
class AverageVariables:
    """Periodically replace variables, after all updates, by their mean over replicas.

    The first step averages, and every `period`-th step after it. The first step must: TensorFlow's workers
    agree on a number for their steps when one of them asks the leader for its first number. If the leader had
    already continued by then, their collectives would wait for each other forever.

    Each replica keeps its gradients, slots and new state to itself. The values of variables cross a boundary
    instead, which later passes weight and combine like any other; the nodes that they add do not run in the
    steps between. The mean is weighted by examples; if a variable's rule is first-replica, that replica's
    value is used.
    """

    name: ClassVar[str] = "average-variables"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        averaged = self.plan.synchronized_by("average")
        own = [v for v in graph.variables if v.name in averaged]
        if not own:
            return graph
        count, following, gate, nodes = self._gate(graph, topology)
        keep = count.keep(following)
        boundaries = [b for b in graph.boundaries if b.variable not in averaged]
        assigned: list[str] = []
        replicas = {replica.rank: replica for replica in topology.local_replicas(self.plan.task)}
        for v in own:
            assert v.rank is not None
            boundary, crossing = _crossing(v, replicas[v.rank], gate, topology)
            boundaries.append(boundary)
            nodes += crossing
            assigned.append(crossing[-1].name)
        return replace(
            graph,
            graph=graph.graph.with_nodes([*graph.graph.nodes, *nodes, keep]),
            variables=(*graph.variables, count.variable),
            boundaries=tuple(boundaries),
            state_targets=(*graph.state_targets, keep.name),
            step_targets=(*graph.step_targets, *assigned),
        )

    def _gate(self, graph: TrainGraph, topology: Topology) -> tuple[StateVariable, str, str, list[Node]]:
        """Step count, its next value, the node that runs in every `period`-th step, and all nodes.

        The periodic node runs after all updates of this task's replicas.
        """
        host = topology.host_device(self.plan.task)
        by_name = graph.graph.by_name
        updated = join_per_device(((t, by_name[t].device) for t in graph.targets()), "average/updated")
        counting = tuple(topology.local_replicas(task)[0].rank for task in range(topology.n_tasks))
        count = StateVariable.of(
            _COUNT,
            "average/steps",
            group="average",
            path="average/steps",
            rank=counting[self.plan.task],
            device=host,
            owners=counting,
            lasting=False,
        )
        spec = TensorSpec(dtype=count.variable.dtype, shape=count.variable.shape)
        counted, (following, gate) = trace(every, (spec,), period=self.plan.execution.period).splice(
            "average/", [count.value], device=host, control=[node.name for node in updated]
        )
        return count, following, gate, [*count.nodes, *updated, *counted]


def _crossing(v: Variable, replica: Replica, gate: str, topology: Topology) -> tuple[Boundary, list[Node]]:
    prefix = replica_prefix(replica.rank)
    name = f"{prefix}average/{v.handle.removeprefix(prefix)}"
    nodes = [
        read_variable(f"{name}/updated", v.handle, v.dtype, replica.device, [gate]),
        identity(name, f"{name}/updated", v.dtype, replica.device),
        assign_variable(f"{name}/assign", v.handle, name, v.dtype, replica.device),
    ]
    weights = {"mean": replica.examples / topology.batch_size, "first-replica": float(replica.rank == 0)}
    rule = v.rule or "mean"
    crossing = Contribution(rank=replica.rank, values=nodes[0].name, indices=None, weight=weights[rule])
    boundary = Boundary(
        variable=v.name,
        role="variable",
        rule=rule,
        dtype=v.dtype,
        shape=v.shape,
        values=name,
        rank=replica.rank,
        contributions=(crossing,),
    )
    return boundary, nodes
