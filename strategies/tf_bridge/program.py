"""The `Program` of a transformed step: its serialized graph and the runner's instructions."""

from dataclasses import replace

from strategies.ir.control_flow import spread_branches
from strategies.ir.graph import Graph
from strategies.ir.train_graph import TrainGraph
from strategies.ir.traversal import prune
from strategies.program import Program
from strategies.tf_bridge.graphdef import serialize_graph
from strategies.topology import UPDATER, Topology, task_device

COLLECTIVE_OPS = ("CollectiveReduceV2", "CollectiveGatherV2", "CollectiveAllToAllV2")


def build_program(
    step: TrainGraph,
    topology: Topology,
    task: int,
    *,
    nodes_before: int,
    alone: bool = False,
    served: bool = True,
    n_waiting: int = 0,
) -> Program:
    """Build the program of one task.

    Args:
        step: step after all passes for this task.
        nodes_before: number of nodes of the captured graph, for the record.
        alone: True if the program runs without the other tasks and holds all variables itself.
        served: True if a task holds variables for all, so that other tasks may connect to this one.
        n_waiting: maximum number of threads that wait for the ring, see `strategies.planner`.
    """
    replicas = topology.local_replicas(task)
    graph = spread_branches(prune(step.graph, step.roots()))
    collective = any(node.op in COLLECTIVE_OPS for node in graph.nodes)
    named = _named_tasks(graph, topology)
    return Program(
        graph_def=serialize_graph(graph),
        step=replace(step, graph=Graph(nodes=()), boundaries=(), regions=()),
        targets=step.targets(),
        variables=tuple(v for v in step.variables if v.rank is not None or task == UPDATER or alone),
        task=task,
        start=replicas[0].start,
        stop=replicas[-1].stop,
        n_devices=len(replicas) if topology.device == "cpu" else 1,
        device_filters=tuple(f"/job:worker/task:{t}" for t in sorted(named | {task, 0})),
        group_leader=task_device(0) if collective else None,
        self_contained=not (collective or served or step.background or named - {task}),
        n_waiting=n_waiting,
        nodes_before=nodes_before,
        nodes_after=len(graph.nodes),
    )


def _named_tasks(graph: Graph, topology: Topology) -> set[int]:
    devices = {node.device for node in graph.nodes if node.device}
    return {t for t in range(topology.n_tasks) if any(d.startswith(f"{task_device(t)}/") for d in devices)}
