"""A step for cores, run by the devices that are here."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.ir.graph import Node
from strategies.ir.train_graph import TrainGraph
from strategies.numerics.compressors.codec import StateSpec
from strategies.numerics.resharding import COUNTS, GAUGES, all_here
from strategies.passes.collectives.keys import GATHER_GROUP_KEY, GROUP_KEY
from strategies.passes.replicate.kept_state import KeptState
from strategies.passes.task_plan import TaskPlan
from strategies.passes.tpu.compiled.computations import COMPILES
from strategies.passes.tpu.emulation.calls import counts_path
from strategies.passes.tpu.emulation.emulated_program import RESHARD
from strategies.passes.tpu.emulation.lowering import lowered
from strategies.passes.tpu.emulation.program import Member
from strategies.passes.tpu.replicated.replicated_nodes import PREFIX
from strategies.tf_bridge.snippet import trace
from strategies.topology import Topology


@dataclass(frozen=True, kw_only=True, slots=True)
class EmulateCores:
    """Lower the computations of a step to this task's replicas; the other tasks have theirs."""

    name: ClassVar[str] = "tpu-emulation"
    task: int

    @classmethod
    def of(cls, plan: TaskPlan) -> "EmulateCores | None":
        """Where the plan's replicas are cores, of which there are none here."""
        return cls(task=plan.task) if plan.on_cores else None

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        """The step on this task's devices."""
        host = topology.host_device(self.task)
        order = topology.collective_order()
        members = {
            replica.rank: Member(
                place=replica.rank,
                order=order,
                group=(topology.n_replicas, GROUP_KEY),
                device=replica.device,
                host=host,
            )
            for replica in topology.local_replicas(self.task)
        }
        emulated = lowered(graph.graph, members)
        is_resharded = any(node.op == RESHARD for node in graph.graph.nodes)
        compiles = [node.name for node in graph.graph.nodes if node.op in COMPILES] if is_resharded else []
        counts = [_counts(name, rank, topology.n_replicas, host) for name in compiles for rank in members]
        meeting = [node for member in members.values() for node in _meeting(member)]
        nodes = (*emulated.nodes, *meeting, *(node for each in counts for node in each.nodes))
        return replace(
            graph,
            graph=emulated.with_nodes(nodes),
            variables=(*graph.variables, *(each.variable for each in counts)),
            step_targets=(*graph.step_targets, *(_met(rank) for rank in members)),
            reshard_counts=tuple(each.variable.read for each in counts),
        )


def _meeting(member: Member) -> Iterator[Node]:
    """A collective of the graph itself in each run.

    TensorFlow looks for collectives there, not in functions, to know whether workers' runs belong together.
    """
    snippet = trace(all_here, (), group=(member.group[0], GATHER_GROUP_KEY), key=1)
    nodes, (met,) = snippet.splice(f"{_met(member.place)}/", [], device=member.device)
    yield from nodes
    yield Node(name=_met(member.place), op="NoOp", inputs=(f"^{met}",), device=member.device)


def _met(rank: int) -> str:
    return f"{PREFIX}replica_{rank}/all_here"


def _counts(compile_name: str, rank: int, n_replicas: int, host: str) -> KeptState:
    """What a replica counts of its resharding, from the moment its variables are loaded."""
    n_counted = len(COUNTS) + len(GAUGES)
    path = counts_path(compile_name)
    return KeptState.of(
        StateSpec(name="counts", dims=(n_counted,), dtype="int64", initial="zeros"),
        path,
        group="resharding",
        path=path,
        rank=rank,
        device=host,
        owners=tuple(range(n_replicas)),
        lasting=False,
    )
