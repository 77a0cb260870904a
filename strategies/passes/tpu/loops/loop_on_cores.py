"""A loop on the cores: each runs all steps by itself, in one execution of one program.

The host hands over the batches of all steps at once and hears of no iteration, so that it cannot reshard
between them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.ir.graph import DType, Function, Graph, Node, producer, tensor
from strategies.ir.train_graph import BatchInput, TrainGraph
from strategies.ir.traversal import Renames
from strategies.numerics import host_loops
from strategies.passes.task_plan import TaskPlan
from strategies.passes.tpu.loops.step_loop import StepLoop
from strategies.passes.tpu.replicated.replicated_computation import (
    PROGRAM,
    ReplicatedComputation,
    argument,
    dtype_of,
    in_program,
    stacked,
)
from strategies.passes.tpu.replicated.replicated_nodes import DONE, METADATA, PREFIX, fed_on, input_of
from strategies.tf_bridge.functions.bodies import Library, function_of
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import Topology

_COMPILE = f"{PREFIX}compile"
_INT32 = DType("int32")


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopOnCores:
    """Make the loop over steps a part of the computation.

    Attributes:
        steps_per_loop: most batches that are fed at once.
    """

    name: ClassVar[str] = "tpu-device-loop"
    task: int
    steps_per_loop: int

    @classmethod
    def of(cls, plan: TaskPlan) -> "LoopOnCores | None":
        """Where the plan's replicas are cores that loop by themselves."""
        if not plan.on_cores or not plan.execution.loops_on_device:
            return None
        return cls(task=plan.task, steps_per_loop=plan.execution.steps_per_loop)

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        """The step whose batches and losses are those of several steps."""
        found = ReplicatedComputation.of(graph)
        batch = tuple(map(stacked, graph.batch))
        library = graph.graph.functions
        host = topology.host_device(self.task)
        inputs, arguments = self._arguments(found, batch, topology)
        compiled = found.compile_node(_COMPILE, frozenset(), waits=(), device=host)
        executes = [
            found.execute_node(
                f"{PREFIX}execute_{replica.rank}",
                arguments[replica.rank],
                tensor(_COMPILE, 1),
                waits=(),
                device=replica.device,
            )
            for replica in topology.replicas()
        ]
        looped = Graph(
            nodes=(*found.outside(batch), *found.fed_elsewhere(), *inputs, compiled, *executes),
            functions={**library, PROGRAM: _program(found, batch, library)},
            extra=graph.graph.extra,
        )

        def given(ref: str) -> str:
            place, rank = found.place_of(ref)
            return tensor(executes[rank].name, place)

        return replace(
            graph,
            graph=looped,
            batch=batch,
            losses=tuple(replace(loss, tensor=given(loss.tensor)) for loss in graph.losses),
            results=tuple(replace(each, tensor=given(each.tensor)) for each in graph.results),
            step_targets=tuple(executes[r.rank].name for r in topology.local_replicas(self.task)),
            steps_per_run=self.steps_per_loop,
        )

    def _arguments(
        self, found: ReplicatedComputation, batch: Sequence[BatchInput], topology: Topology
    ) -> tuple[list[Node], list[list[str]]]:
        """Nodes that split what is fed, and what each replica gives the computation, by rank."""
        nodes: list[Node] = []
        columns: dict[str, list[str]] = {}
        for b in batch:
            refs: list[str] = []
            for task in range(topology.n_tasks):
                fed = b.node if task == self.task else fed_on(task, b.node)
                sizes = tuple(shard.examples for shard in topology.local_shards(task))
                snippet = trace(host_loops.replica_batches, (TensorSpec(dtype=b.dtype),), sizes=sizes)
                added, parts = snippet.splice(
                    f"{PREFIX}{fed}/of_replicas/", [fed], device=topology.host_device(self.task)
                )
                nodes += added
                refs += parts
            columns[input_of(b.node)] = refs
        rows = zip(*(columns.get(node.name, node.data_inputs) for node in found.inputs), strict=True)
        return nodes, [list(row) for row in rows]


def _program(found: ReplicatedComputation, batch: Sequence[BatchInput], library: Library) -> Function:
    """The loop over all steps, as one program."""
    names = {node.name: argument(place) for place, node in enumerate(found.inputs)}
    loop = StepLoop(f"{PREFIX}loop/", "")
    first = batch[0]
    step = loop.begin(names[input_of(first.node)], first.dtype)
    fed = {input_of(b.node): b for b in batch}
    renames = Renames({})
    for node in found.inputs:
        entered = loop.frame.enter(names[node.name], names[node.name], dtype_of(node))
        if node.name in fed:
            dtype = dtype_of(node)
            entered = loop.in_step(
                host_loops.one_batch, f"{names[node.name]}/of_step", [(entered, dtype), (step, _INT32)]
            )
        renames[node.name] = entered
    pivot = f"^{loop.frame.pivot}"
    renames[f"^{METADATA}"] = pivot
    own = {node.name for node in found.body}
    for node in found.body:
        inputs = [renames[ref] for ref in node.inputs]
        # What takes arguments alone would not wait for the iteration before, which may write variables.
        if own.isdisjoint(map(producer, node.inputs)) and pivot not in inputs:
            inputs.append(pivot)
        loop.frame.nodes.append(in_program(node, tuple(inputs)))
    ends = [
        loop.output(f"result_{place}", node.inputs[0], dtype_of(node), is_loss=place == 0)
        for place, node in enumerate(found.outputs)
    ]
    # What only a result reads must have been read before the next iteration writes.
    count = loop.end([DONE, *(producer(node.inputs[0]) for node in found.outputs)])
    return function_of(
        PROGRAM,
        loop.frame.nodes,
        inputs={names[node.name]: dtype_of(node) for node in found.inputs},
        results={
            f"result_{place}": (ref, dtype_of(node))
            for place, (ref, node) in enumerate(zip(ends, found.outputs, strict=True))
        },
        waits=[count],
        library=library,
    )
