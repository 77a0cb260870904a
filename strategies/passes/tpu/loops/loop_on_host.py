"""A host loop around a replicated computation, which each iteration compiles, if it must, and executes.

TensorFlow's runtime makes such loops of the replicated computation where there are TPUs.
"""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.ir.graph import DType, Function, Graph, Node, Shape, tensor
from strategies.ir.train_graph import BatchInput, TrainGraph
from strategies.ir.traversal import Renames
from strategies.numerics import host_loops
from strategies.passes.replicate.step_copies import replica_prefix
from strategies.passes.task_plan import TaskPlan
from strategies.passes.tpu.loops.step_loop import StepLoop
from strategies.passes.tpu.replicated.replicated_computation import (
    PROGRAM,
    RESOURCE,
    ReplicatedComputation,
    argument,
    dtype_of,
    in_program,
    stacked,
)
from strategies.passes.tpu.replicated.replicated_nodes import DONE, METADATA, PREFIX, fed_on, input_of
from strategies.tf_bridge.functions.bodies import OUTPUT_SHAPES, Library, function_of
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import Topology

LOOP = f"{PREFIX}loop/"
_INT32 = DType("int32")


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopOnHost:
    """Run a replicated computation in a loop, once for each batch that is fed.

    Attributes:
        steps_per_loop: most batches that are fed at once.
        in_parts: names of variables that may lie in parts while the loop runs.
    """

    name: ClassVar[str] = "tpu-host-loop"
    task: int
    steps_per_loop: int
    in_parts: frozenset[str]

    @classmethod
    def of(cls, plan: TaskPlan) -> "LoopOnHost | None":
        """Where the plan's replicas are cores, and their steps a loop of the host."""
        if not plan.on_cores or plan.execution.loops_on_device:
            return None
        return cls(task=plan.task, steps_per_loop=plan.execution.steps_per_loop, in_parts=plan.in_parts)

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        """The step whose batches and losses are those of several steps."""
        found = ReplicatedComputation.of(graph)
        batch = tuple(map(stacked, graph.batch))
        building = _Building(found=found, batch=batch, topology=topology, task=self.task)
        handles = {v.handle.removeprefix(replica_prefix(v.rank or 0)): v.name for v in graph.variables}
        parted = {handle for handle, name in handles.items() if name in self.in_parts}
        nodes, ends, count = building.nodes(parted)
        library = graph.graph.functions
        examples = topology.replicas()[0].examples
        of_replica = [_of_replica(b, examples) for b in graph.batch]
        looped = Graph(
            nodes=(*found.outside(batch), *nodes),
            functions={**library, PROGRAM: _program(found, library, of_replica)},
            extra=graph.graph.extra,
        )
        return replace(
            graph,
            graph=looped,
            batch=batch,
            losses=tuple(replace(loss, tensor=ends[found.place_of(loss.tensor)]) for loss in graph.losses),
            results=tuple(replace(each, tensor=ends[found.place_of(each.tensor)]) for each in graph.results),
            step_targets=(count,),
            steps_per_run=self.steps_per_loop,
        )


def _of_replica(b: BatchInput, examples: int) -> BatchInput:
    return b if not b.shape.dims else replace(b, shape=Shape((examples, *b.shape.dims[1:])))


def _program(found: ReplicatedComputation, library: Library, of_replica: Sequence[BatchInput]) -> Function:
    """The program of a step, which knows the shapes of what a replica is fed."""
    renames = Renames({})
    renames.update((node.name, argument(place)) for place, node in enumerate(found.inputs))
    body = [
        in_program(node, tuple(renames[ref] for ref in node.inputs if ref != f"^{METADATA}"))
        for node in found.body
    ]
    program = function_of(
        PROGRAM,
        body,
        inputs={argument(place): dtype_of(node) for place, node in enumerate(found.inputs)},
        results={
            f"result_{place}": (node.inputs[0], dtype_of(node)) for place, node in enumerate(found.outputs)
        },
        waits=[DONE],
        library=library,
    )
    shapes = {input_of(b.node): b.shape for b in of_replica}
    arg_attrs = {
        place: {OUTPUT_SHAPES: (shapes[node.name],)}
        for place, node in enumerate(found.inputs)
        if node.name in shapes
    }
    return replace(program, arg_attrs=arg_attrs)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Building:
    """A loop around a computation as it is built.

    Attributes:
        batch: what is fed, stacked.
    """

    found: ReplicatedComputation
    batch: Sequence[BatchInput]
    topology: Topology
    task: int

    def nodes(self, parted: AbstractSet[str]) -> tuple[tuple[Node, ...], dict[tuple[int, int], str], str]:
        """The loop: its nodes, what outputs are after it by place and rank, and the number of its steps.

        Args:
            parted: replicated handles of variables that may lie in parts meanwhile.
        """
        host = self.topology.host_device(self.task)
        loop = StepLoop(LOOP, host)
        frame, replicas = loop.frame, self.topology.replicas()
        frame.nodes += self.found.fed_elsewhere()
        step = loop.begin(self.batch[0].node, self.batch[0].dtype)
        compiled = self.found.compile_node(f"{LOOP}compile", parted, waits=[frame.pivot], device=host)
        executes = [
            self.found.execute_node(
                f"{LOOP}execute_{replica.rank}",
                arguments,
                tensor(compiled.name, 1),
                waits=[frame.pivot],
                device=replica.device,
            )
            for replica, arguments in zip(replicas, self._arguments(loop, step), strict=True)
        ]
        frame.nodes += [compiled, *executes]
        ends = {
            (place, replica.rank): loop.output(
                f"output_{place}/replica_{replica.rank}",
                tensor(executes[replica.rank].name, place),
                dtype_of(output),
                is_loss=place == 0,
            )
            for place, output in enumerate(self.found.outputs)
            for replica in replicas
        }
        count = loop.end([node.name for node in executes])
        return tuple(frame.nodes), ends, count

    def _arguments(self, loop: StepLoop, step: str) -> list[list[str]]:
        """What each replica gives the computation in an iteration, by rank."""
        batches = {input_of(b.node): self._batches(loop, b, step) for b in self.batch}
        columns = [
            batches[node.name] if node.name in batches else list(self._constants(loop, node))
            for node in self.found.inputs
        ]
        return [list(row) for row in zip(*columns, strict=True)]

    def _constants(self, loop: StepLoop, node: Node) -> Iterator[str]:
        for rank, ref in enumerate(node.data_inputs):
            device = self.topology.replicas()[rank].device if dtype_of(node) == RESOURCE else None
            yield loop.frame.enter(f"{node.name}/replica_{rank}", ref, dtype_of(node), device=device)

    def _batches(self, loop: StepLoop, b: BatchInput, step: str) -> list[str]:
        frame = loop.frame
        refs: list[str] = []
        for task in range(self.topology.n_tasks):
            fed = b.node if task == self.task else fed_on(task, b.node)
            entered = frame.enter(fed, fed, b.dtype)
            sizes = tuple(shard.examples for shard in self.topology.local_shards(task))
            snippet = trace(
                host_loops.step_batch, (TensorSpec(dtype=b.dtype), TensorSpec(dtype=_INT32)), sizes=sizes
            )
            nodes, parts = snippet.splice(
                f"{LOOP}{fed}/of_step/", [entered, step], device=frame.device, control=[frame.pivot]
            )
            frame.nodes += nodes
            refs += parts
        return refs
