"""Collectives in separate session runs, for steps whose run involves other tasks."""

from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.ir.graph import DType, Node, producer
from strategies.ir.train_graph import TrainGraph
from strategies.passes.task_plan import TaskPlan
from strategies.passes.tensor_queue import TensorQueue
from strategies.topology import Topology

_INT32 = DType("int32")


@dataclass(frozen=True, kw_only=True, slots=True)
class SeparateCollectives:
    """Run collectives beside the step, in a run that involves only this task.

    Runs with collectives have the same number on all tasks, by which members find each other. When such a run
    ends, TensorFlow drops all state under its number on every task involved: if the step also reads from a
    server, the server's own step would fail. Each collective therefore gets its input, and the step its
    result, through queues on the task.
    """

    name: ClassVar[str] = "separate-collectives"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        if topology.n_tasks == 1:
            return graph
        host = topology.host_device(self.plan.task)
        by_name = graph.graph.by_name
        nodes: list[Node] = []
        background: list[str] = []
        for node in graph.graph.nodes:
            if not node.op.startswith("Collective"):
                nodes.append(node)
                continue
            varying = [k for k, ref in enumerate(node.data_inputs) if by_name[producer(ref)].op != "Const"]
            apart = _apart(node, varying, host)
            nodes += apart
            background.append(apart[-1].name)
        if not background:
            return graph
        return replace(
            graph,
            graph=graph.graph.with_nodes(nodes),
            background=(*graph.background, *background),
        )


def _apart(node: Node, varying: list[int], host: str) -> list[Node]:
    """Collective between two queues; the step's input has the collective's name."""
    dtype = node.attrs["T"]
    assert isinstance(dtype, DType)
    refs = list(node.data_inputs)
    # All outputs but the first are numbers by which members find each other.
    inputs = TensorQueue.of(f"{node.name}/inputs", [dtype if k == 0 else _INT32 for k in varying], host)
    give = inputs.put("give", [refs[k] for k in varying], node.control_inputs)
    give = give.changed(name=f"{node.name}/give")
    begin = inputs.take("begin").changed(name=f"{node.name}/begin")
    for i, k in enumerate(varying):
        refs[k] = begin.name if i == 0 else f"{begin.name}:{i}"
    run = replace(node, name=f"{node.name}/run", inputs=tuple(refs))
    results = TensorQueue.of(f"{node.name}/results", [dtype], host)
    result = results.take("take", [give.name]).changed(name=node.name)
    end = results.put("end", [run.name]).changed(name=f"{node.name}/end")
    return [inputs.handle, give, begin, run, results.handle, result, end]
