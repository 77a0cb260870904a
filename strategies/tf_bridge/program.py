"""The `Program` of a transformed step: its serialized graph and the runner's instructions."""

from strategies.ir.control_flow import spread_branches
from strategies.ir.graph import Graph
from strategies.ir.train_graph import TrainGraph
from strategies.ir.traversal import prune
from strategies.ir.variable import SeedMix, Variable
from strategies.program import Program, VariableAccess
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
    """Program of one task.

    Args:
        step: after all passes for this task.
        nodes_before: nodes of the captured graph, for the record.
        alone: the program runs without the other tasks and holds all variables itself.
        served: some task holds variables for all, so that other tasks may come to this one's.
        n_waiting: see `strategies.planner`.
    """
    replicas = topology.local_replicas(task)
    graph = spread_branches(prune(step.graph, step.roots()))
    collective = any(node.op in COLLECTIVE_OPS for node in graph.nodes)
    named = _named_tasks(graph, topology)
    return Program(
        graph_def=serialize_graph(graph),
        task=task,
        batch=step.batch,
        start=replicas[0].start,
        stop=replicas[-1].stop,
        losses=step.losses,
        targets=step.targets(),
        setup=(*step.tables, *step.setup),
        variables=tuple(_access(v) for v in step.variables if v.rank is not None or task == UPDATER or alone),
        n_devices=len(replicas) if topology.device == "cpu" else 1,
        device_filters=tuple(f"/job:worker/task:{t}" for t in sorted(named | {task, 0})),
        group_leader=task_device(0) if collective else None,
        nodes_before=nodes_before,
        nodes_after=len(graph.nodes),
        self_contained=not (collective or served or step.background or named - {task}),
        background=step.background,
        taken=step.taken,
        progress=step.progress,
        transfers=step.transfers,
        n_waiting=n_waiting,
        results=step.results,
        steps_per_run=step.steps_per_run,
        reshard_counts=step.reshard_counts,
        aggregation_counts=step.aggregation_counts,
    )


def _access(v: Variable) -> VariableAccess:
    mix = None if v.seed_word is None or not v.rank else SeedMix(rank=v.rank, word=v.seed_word)
    return VariableAccess(
        variable=v.name if v.part is None else v.part.variable,
        kind=v.kind,
        rank=None if v.sole else v.rank,
        placeholder=v.placeholder,
        load=v.load,
        read=v.read,
        seed_mix=mix,
        fresh=v.fresh,
        part=v.part,
    )


def _named_tasks(graph: Graph, topology: Topology) -> set[int]:
    devices = {node.device for node in graph.nodes if node.device}
    return {t for t in range(topology.n_tasks) if any(d.startswith(f"{task_device(t)}/") for d in devices)}
