"""Loops over steps around a computation, on the host or on the cores.

A host loop compiles and executes the computation in each iteration, as TensorFlow's runtime does with TPUs.
Cores that loop by themselves get all batches at once, so that nothing can be resharded between steps.
"""

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.ir.graph import DType, Function, Graph, Node, Shape, producer, tensor
from strategies.ir.train_graph import BatchInput, TrainGraph
from strategies.ir.traversal import Renames
from strategies.numerics import host_loops
from strategies.passes.replicate.step_copies import replica_prefix
from strategies.passes.task_plan import TaskPlan
from strategies.passes.tpu.replicated_computation import (
    DONE,
    METADATA,
    PREFIX,
    PROGRAM,
    RESOURCE,
    ReplicatedComputation,
    argument,
    dtype_of,
    fed_on,
    in_program,
    input_of,
    stacked,
)
from strategies.passes.tpu.step_loop import StepLoop
from strategies.tf_bridge.function_bodies import OUTPUT_SHAPES, Library, function_of
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import Topology

_COMPILE = f"{PREFIX}compile"
_INT32 = DType("int32")


def _with_loop(
    step: TrainGraph, *, nodes: tuple[Node, ...], program: Function, output: Callable[[int, int], str]
) -> TrainGraph:
    """Build the step around a loop; `output` returns an output's final value by position and rank."""
    computation = ReplicatedComputation.of(step)
    functions = {**step.graph.functions, PROGRAM: program}
    return replace(
        step,
        graph=Graph(nodes=nodes, functions=functions, extra=step.graph.extra),
        losses=tuple(
            replace(loss, tensor=output(*computation.place_of(loss.tensor))) for loss in step.losses
        ),
        results=tuple(
            replace(result, tensor=output(*computation.place_of(result.tensor))) for result in step.results
        ),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopOnCores:
    """Make the loop over steps a part of the computation, for up to `steps_per_loop` batches."""

    name: ClassVar[str] = "tpu-device-loop"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        computation = ReplicatedComputation.of(graph)
        batch = tuple(map(stacked, graph.batch))
        host = topology.host_device(self.plan.task)
        inputs, arguments = self._arguments(computation, batch, topology)
        compiled = computation.compile_node(_COMPILE, frozenset(), waits=(), device=host)
        executes = [
            computation.execute_node(
                f"{PREFIX}execute_{replica.rank}",
                arguments[replica.rank],
                tensor(_COMPILE, 1),
                waits=(),
                device=replica.device,
            )
            for replica in topology.replicas()
        ]
        looped = _with_loop(
            graph,
            nodes=(*computation.outside(batch), *computation.fed_elsewhere(), *inputs, compiled, *executes),
            program=_loop_program(computation, batch, graph.graph.functions),
            output=lambda place, rank: tensor(executes[rank].name, place),
        )
        targets = tuple(executes[r.rank].name for r in topology.local_replicas(self.plan.task))
        return replace(
            looped, batch=batch, step_targets=targets, steps_per_run=self.plan.execution.steps_per_loop
        )

    def _arguments(
        self, computation: ReplicatedComputation, batch: Sequence[BatchInput], topology: Topology
    ) -> tuple[list[Node], list[list[str]]]:
        nodes: list[Node] = []
        columns: dict[str, list[str]] = {}
        for b in batch:
            refs: list[str] = []
            for task in range(topology.n_tasks):
                fed = b.node if task == self.plan.task else fed_on(task, b.node)
                sizes = tuple(shard.examples for shard in topology.local_shards(task))
                snippet = trace(host_loops.replica_batches, (TensorSpec(dtype=b.dtype),), sizes=sizes)
                added, parts = snippet.splice(
                    f"{PREFIX}{fed}/of_replicas/", [fed], device=topology.host_device(self.plan.task)
                )
                nodes += added
                refs += parts
            columns[input_of(b.node)] = refs
        rows = zip(*(columns.get(node.name, node.data_inputs) for node in computation.inputs), strict=True)
        return nodes, [list(row) for row in rows]


def _loop_program(
    computation: ReplicatedComputation, batch: Sequence[BatchInput], library: Library
) -> Function:
    names = {node.name: argument(place) for place, node in enumerate(computation.inputs)}
    loop = StepLoop(f"{PREFIX}loop/", "")
    first = batch[0]
    step = loop.begin(names[input_of(first.node)], first.dtype)
    fed = {input_of(b.node): b for b in batch}
    renames = Renames({})
    for node in computation.inputs:
        entered = loop.frame.enter(names[node.name], names[node.name], dtype_of(node))
        if node.name in fed:
            dtype = dtype_of(node)
            entered = loop.in_step(
                host_loops.one_batch, f"{names[node.name]}/of_step", [(entered, dtype), (step, _INT32)]
            )
        renames[node.name] = entered
    pivot = f"^{loop.frame.pivot}"
    renames[f"^{METADATA}"] = pivot
    own = {node.name for node in computation.body}
    for node in computation.body:
        inputs = [renames[ref] for ref in node.inputs]
        # A node with only arguments would not wait for the previous iteration, which may write variables.
        if own.isdisjoint(map(producer, node.inputs)) and pivot not in inputs:
            inputs.append(pivot)
        loop.frame.nodes.append(in_program(node, tuple(inputs)))
    ends = [
        loop.output(f"result_{place}", node.inputs[0], dtype_of(node), is_loss=place == 0)
        for place, node in enumerate(computation.outputs)
    ]
    # A read that only a result uses must happen before the next iteration writes.
    count = loop.end([DONE, *(producer(node.inputs[0]) for node in computation.outputs)])
    return function_of(
        PROGRAM,
        loop.frame.nodes,
        inputs={names[node.name]: dtype_of(node) for node in computation.inputs},
        results={
            f"result_{place}": (ref, dtype_of(node))
            for place, (ref, node) in enumerate(zip(ends, computation.outputs, strict=True))
        },
        waits=[count],
        library=library,
    )


LOOP = f"{PREFIX}loop/"


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopOnHost:
    """Run a replicated computation in a host loop, once for each fed batch."""

    name: ClassVar[str] = "tpu-host-loop"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        computation = ReplicatedComputation.of(graph)
        batch = tuple(map(stacked, graph.batch))
        building = _Building(computation=computation, batch=batch, topology=topology, task=self.plan.task)
        handles = {v.handle.removeprefix(replica_prefix(v.rank or 0)): v.name for v in graph.variables}
        parted = {handle for handle, name in handles.items() if name in self.plan.in_parts}
        nodes, ends, count = building.nodes(parted)
        examples = topology.replicas()[0].examples
        of_replica = [_of_replica(b, examples) for b in graph.batch]
        looped = _with_loop(
            graph,
            nodes=(*computation.outside(batch), *nodes),
            program=_step_program(computation, graph.graph.functions, of_replica),
            output=lambda place, rank: ends[place, rank],
        )
        return replace(
            looped, batch=batch, step_targets=(count,), steps_per_run=self.plan.execution.steps_per_loop
        )


def _of_replica(b: BatchInput, examples: int) -> BatchInput:
    return b if not b.shape.dims else replace(b, shape=Shape((examples, *b.shape.dims[1:])))


def _step_program(
    computation: ReplicatedComputation, library: Library, of_replica: Sequence[BatchInput]
) -> Function:
    renames = Renames({})
    renames.update((node.name, argument(place)) for place, node in enumerate(computation.inputs))
    body = [
        in_program(node, tuple(renames[ref] for ref in node.inputs if ref != f"^{METADATA}"))
        for node in computation.body
    ]
    program = function_of(
        PROGRAM,
        body,
        inputs={argument(place): dtype_of(node) for place, node in enumerate(computation.inputs)},
        results={
            f"result_{place}": (node.inputs[0], dtype_of(node))
            for place, node in enumerate(computation.outputs)
        },
        waits=[DONE],
        library=library,
    )
    shapes = {input_of(b.node): b.shape for b in of_replica}
    arg_attrs = {
        place: {OUTPUT_SHAPES: (shapes[node.name],)}
        for place, node in enumerate(computation.inputs)
        if node.name in shapes
    }
    return replace(program, arg_attrs=arg_attrs)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Building:
    """A loop around a computation; `batch` is stacked."""

    computation: ReplicatedComputation
    batch: Sequence[BatchInput]
    topology: Topology
    task: int

    def nodes(self, parted: AbstractSet[str]) -> tuple[tuple[Node, ...], dict[tuple[int, int], str], str]:
        """Nodes of the loop, final values of outputs by position and rank, and the number of steps."""
        host = self.topology.host_device(self.task)
        loop = StepLoop(LOOP, host)
        frame, replicas = loop.frame, self.topology.replicas()
        frame.nodes += self.computation.fed_elsewhere()
        step = loop.begin(self.batch[0].node, self.batch[0].dtype)
        compiled = self.computation.compile_node(f"{LOOP}compile", parted, waits=[frame.pivot], device=host)
        executes = [
            self.computation.execute_node(
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
            for place, output in enumerate(self.computation.outputs)
            for replica in replicas
        }
        count = loop.end([node.name for node in executes])
        return tuple(frame.nodes), ends, count

    def _arguments(self, loop: StepLoop, step: str) -> list[list[str]]:
        batches = {input_of(b.node): self._batches(loop, b, step) for b in self.batch}
        columns = [
            batches[node.name] if node.name in batches else list(self._constants(loop, node))
            for node in self.computation.inputs
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
