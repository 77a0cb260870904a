"""A step for cores, run by the devices that are here."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.ir.graph import Attr, DType, Node, Shape, TensorValue
from strategies.ir.text.tensors import tensor_proto
from strategies.ir.train_graph import TrainGraph
from strategies.numerics.resharding import COUNTS, GAUGES
from strategies.passes.collectives.keys import GROUP_KEY
from strategies.passes.task_plan import TaskPlan
from strategies.passes.tpu.computations import COMPILES
from strategies.passes.tpu.emulated_program import RESHARD
from strategies.passes.tpu.emulation import counts_name, lowered
from strategies.passes.tpu.program import Member
from strategies.topology import Topology

_N_COUNTED = len(COUNTS) + len(GAUGES)


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
        names = [counts_name(name, rank) for name in compiles for rank in members]
        counts = [node for name in names for node in _counts(name, host)]
        return replace(
            graph,
            graph=emulated.with_nodes((*emulated.nodes, *counts)),
            setup=(*graph.setup, *(f"{name}/begun" for name in names)),
            reshard_counts=tuple(f"{name}/read" for name in names),
        )


def _counts(name: str, host: str) -> Iterator[Node]:
    """What a replica counts of its resharding: from zero on, and how it is read."""
    attrs: dict[str, Attr] = {
        "allowed_devices": (),
        "container": b"",
        "debug_name": b"",
        "dtype": DType("int64"),
        "shape": Shape((_N_COUNTED,)),
        "shared_name": name.encode(),
    }
    yield Node(name=f"{name}/handle", op="VarHandleOp", attrs=attrs, device=host)
    int64: Attr = DType("int64")
    zeros = TensorValue(tensor_proto("int64", (_N_COUNTED,), (0,) * _N_COUNTED))
    yield Node(name=f"{name}/zeros", op="Const", attrs={"dtype": int64, "value": zeros}, device=host)
    yield Node(
        name=f"{name}/begun",
        op="AssignVariableOp",
        inputs=(f"{name}/handle", f"{name}/zeros"),
        attrs={"dtype": int64, "validate_shape": False},
        device=host,
    )
    yield Node(
        name=f"{name}/read",
        op="ReadVariableOp",
        inputs=(f"{name}/handle",),
        attrs={"dtype": int64},
        device=host,
    )
