"""A host loop around a replicated computation, which each iteration compiles, if it must, and executes.

TensorFlow's runtime makes such loops of the replicated computation where there are TPUs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.ir.graph import (
    Attr,
    DType,
    Function,
    FunctionRef,
    Graph,
    Node,
    Shape,
    output_index,
    producer,
    tensor,
)
from strategies.ir.train_graph import BatchInput, TrainGraph
from strategies.ir.traversal import Renames
from strategies.numerics import host_loops
from strategies.passes.replicate.step_copies import replica_prefix
from strategies.passes.task_plan import TaskPlan
from strategies.passes.tpu.compile_metadata import Argument, ArgumentKind, CompileMetadata, Sharding
from strategies.passes.tpu.frames import Frame
from strategies.passes.tpu.replicated_nodes import BODY, CLUSTER, DONE, METADATA, PREFIX, fed_on, input_of
from strategies.tf_bridge.attrs import dtype_number
from strategies.tf_bridge.constants import constant
from strategies.tf_bridge.function_bodies import function_of
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import Topology

LOOP = f"{PREFIX}loop/"
COMPILE = f"{LOOP}compile"
_COUNT = "step"
_INT32, _RESOURCE = DType("int32"), DType("resource")
_SCAFFOLD = frozenset(
    {"TPUReplicateMetadata", "TPUReplicatedInput", "TPUReplicatedOutput", "TPUCompilationResult"}
)


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
        """Where the plan's replicas are cores."""
        if not plan.on_cores:
            return None
        return cls(task=plan.task, steps_per_loop=plan.execution.steps_per_loop, in_parts=plan.in_parts)

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        """The step whose batches and losses are those of several steps."""
        found = _Computation.of(graph)
        batch = tuple(map(_stacked, graph.batch))
        building = _Building(
            found=found, batch=batch, topology=topology, host=topology.host_device(self.task), task=self.task
        )
        handles = {v.handle.removeprefix(replica_prefix(v.rank or 0)): v.name for v in graph.variables}
        parted = {handle for handle, name in handles.items() if name in self.in_parts}
        nodes, ends, count = building.nodes(parted)
        function = found.function(graph.graph.functions)
        looped = Graph(
            nodes=(*found.outside(batch), *nodes),
            functions={**graph.graph.functions, function.name: function},
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Computation:
    """A replicated computation, as its nodes tell.

    Attributes:
        inputs, outputs: replicated ones, in graph order.
        n_replicas: that run it.
    """

    graph: Graph
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    n_replicas: int

    @classmethod
    def of(cls, step: TrainGraph) -> "_Computation":
        nodes = step.graph.nodes
        n_replicas = step.graph.by_name[METADATA].attrs["num_replicas"]
        assert isinstance(n_replicas, int)
        return cls(
            graph=step.graph,
            inputs=tuple(node for node in nodes if node.op == "TPUReplicatedInput"),
            outputs=tuple(node for node in nodes if node.op == "TPUReplicatedOutput"),
            n_replicas=n_replicas,
        )

    def place_of(self, ref: str) -> tuple[int, int]:
        """Which output a tensor outside of the computation is, and whose."""
        source = self.graph.by_name[producer(ref)].inputs[0]
        names = [node.name for node in self.outputs]
        return names.index(producer(source)), output_index(source)

    def outside(self, batch: Sequence[BatchInput]) -> Iterator[Node]:
        """Nodes around the computation that a loop needs too; what is fed is stacked."""
        fed = {b.node for b in batch}
        for node in self.graph.nodes:
            if BODY in node.attrs or node.op in _SCAFFOLD or node.name.startswith(PREFIX):
                continue
            yield _as_stacked(node) if node.name in fed else node

    def fed_elsewhere(self) -> Iterator[Node]:
        """What other tasks are fed with."""
        for node in self.graph.nodes:
            if node.op == "Placeholder" and node.name.startswith(PREFIX):
                yield _as_stacked(node)

    def function(self, library: Mapping[str, Function]) -> Function:
        """The program of the computation."""
        renames = Renames({})
        renames.update((node.name, f"argument_{place}") for place, node in enumerate(self.inputs))
        body = [node for node in self.graph.nodes if BODY in node.attrs and node.op not in _SCAFFOLD]
        given = [node.inputs[0] for node in self.outputs]
        return function_of(
            f"{CLUSTER}__program",
            [_in_program(node, renames) for node in body],
            inputs={f"argument_{place}": dtype_of(node) for place, node in enumerate(self.inputs)},
            results={
                f"result_{place}": (ref, dtype_of(node))
                for place, (ref, node) in enumerate(zip(given, self.outputs, strict=True))
            },
            waits=[DONE],
            library=library,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Building:
    """A loop around a computation as it is built.

    Attributes:
        batch: what is fed, stacked.
    """

    found: _Computation
    batch: Sequence[BatchInput]
    topology: Topology
    host: str
    task: int

    def nodes(self, parted: set[str]) -> tuple[tuple[Node, ...], Mapping[tuple[int, int], str], str]:
        """The loop: its nodes, what outputs are after it by place and rank, and the number of its steps.

        Args:
            parted: replicated handles of variables that may lie in parts meanwhile.
        """
        loop = Frame(prefix=LOOP, device=self.host)
        loop.nodes += self.found.fed_elsewhere()
        limit = self._spliced(loop, host_loops.n_steps, "limit", [(self.batch[0].node, self.batch[0].dtype)])
        zero = self._constant(loop, "first_step", 0)
        at_condition, step = loop.variable(_COUNT, zero, _INT32)
        entered = loop.enter("limit", limit, _INT32)
        goes_on = self._spliced(
            loop, host_loops.goes_on, "goes_on_if", [(at_condition, _INT32), (entered, _INT32)]
        )
        loop.repeat_while(goes_on)
        loop.begins_at(step)
        arguments = self._arguments(loop, step)
        loop.nodes.append(self._compile(loop, parted))
        executes = [self._execute(loop, rank, arguments[rank]) for rank in range(self.found.n_replicas)]
        ends = {
            (place, rank): self._output(loop, place, rank, executes[rank])
            for place in range(len(self.found.outputs))
            for rank in range(self.found.n_replicas)
        }
        following = self._spliced(
            loop, host_loops.next_step, "next_step", [(step, _INT32)], waits=[loop.pivot]
        )
        count = loop.next(_COUNT, following, _INT32, executes)
        return tuple(loop.nodes), ends, count

    def _arguments(self, loop: Frame, step: str) -> list[list[str]]:
        """What each replica gives the computation in an iteration, by rank."""
        batches = {input_of(b.node): self._batches(loop, b, step) for b in self.batch}
        columns = [
            batches[node.name] if node.name in batches else list(self._constants(loop, node))
            for node in self.found.inputs
        ]
        return [list(row) for row in zip(*columns, strict=True)]

    def _constants(self, loop: Frame, node: Node) -> Iterator[str]:
        for rank, ref in enumerate(node.data_inputs):
            device = self.topology.replicas()[rank].device if dtype_of(node) == _RESOURCE else None
            yield loop.enter(f"{node.name}/replica_{rank}", ref, dtype_of(node), device=device)

    def _batches(self, loop: Frame, b: BatchInput, step: str) -> list[str]:
        refs: list[str] = []
        for task in range(self.topology.n_tasks):
            fed = b.node if task == self.task else fed_on(task, b.node)
            entered = loop.enter(fed, fed, b.dtype)
            sizes = tuple(shard.examples for shard in self.topology.local_shards(task))
            snippet = trace(
                host_loops.step_batch, (TensorSpec(dtype=b.dtype), TensorSpec(dtype=_INT32)), sizes=sizes
            )
            nodes, parts = snippet.splice(
                f"{LOOP}{fed}/of_step/", [entered, step], device=self.host, control=[loop.pivot]
            )
            loop.nodes += nodes
            refs += parts
        return refs

    def _compile(self, loop: Frame, parted: set[str]) -> Node:
        arguments = [
            Argument(
                kind=ArgumentKind.VARIABLE if dtype_of(node) == _RESOURCE else ArgumentKind.PARAMETER,
                sharding=Sharding.TENTATIVE
                if node.name in parted and node.attrs["is_mirrored_variable"]
                else Sharding.DISALLOWED,
            )
            for node in self.found.inputs
        ]
        attrs: dict[str, Attr] = {
            "NumDynamicShapes": 0,
            "Tguaranteed_constants": (),
            "function": FunctionRef(f"{CLUSTER}__program"),
            "metadata": CompileMetadata.of(self.found.n_replicas, arguments).proto,
            "num_computations": 1,
        }
        return Node(name=COMPILE, op="TPUCompile", inputs=(f"^{loop.pivot}",), attrs=attrs, device=self.host)

    def _execute(self, loop: Frame, rank: int, arguments: Sequence[str]) -> str:
        variables = tuple(i for i, node in enumerate(self.found.inputs) if dtype_of(node) == _RESOURCE)
        attrs: dict[str, Attr] = {
            "Targs": tuple(map(dtype_of, self.found.inputs)),
            "Tresults": tuple(map(dtype_of, self.found.outputs)),
            "device_var_reads_indices": variables,
            "device_var_updates_indices": variables,
        }
        name = f"{LOOP}execute_{rank}"
        loop.nodes.append(
            Node(
                name=name,
                op="TPUExecuteAndUpdateVariables",
                inputs=(*arguments, tensor(COMPILE, 1), f"^{loop.pivot}"),
                attrs=attrs,
                device=self.topology.replicas()[rank].device,
            )
        )
        return name

    def _output(self, loop: Frame, place: int, rank: int, execute: str) -> str:
        """What an output of the computation is after the loop: all losses, or the last of another one."""
        dtype, name = dtype_of(self.found.outputs[place]), f"output_{place}/replica_{rank}"
        is_loss = place == 0
        first = trace(
            host_loops.no_losses if is_loss else host_loops.no_result, (), dtype=dtype_number(dtype)
        )
        nodes, (nothing,) = first.splice(f"{LOOP}{name}/nothing/", [], device=self.host)
        loop.nodes += nodes
        _, value = loop.variable(name, nothing, dtype)
        ref = tensor(execute, place)
        if is_loss:
            ref = self._spliced(
                loop,
                host_loops.with_loss,
                f"{name}/appended",
                [(value, dtype), (ref, dtype)],
                waits=[loop.pivot],
            )
        return loop.next(name, ref, dtype)

    def _spliced(
        self,
        loop: Frame,
        fn: Callable[..., object],
        name: str,
        inputs: Sequence[tuple[str, DType]],
        waits: Sequence[str] = (),
    ) -> str:
        """The one result of a function of tensors, given by reference and type."""
        snippet = trace(fn, tuple(TensorSpec(dtype=dtype) for _, dtype in inputs))
        refs = [ref for ref, _ in inputs]
        nodes, (result,) = snippet.splice(f"{LOOP}{name}/", refs, device=self.host, control=waits)
        loop.nodes += nodes
        return result

    def _constant(self, loop: Frame, name: str, value: int) -> str:
        node = constant(f"{LOOP}{name}", value, _INT32, self.host)
        loop.nodes.append(node)
        return node.name


def dtype_of(node: Node) -> DType:
    """Type of a replicated input or output."""
    dtype = node.attrs["T"]
    assert isinstance(dtype, DType)
    return dtype


def _in_program(node: Node, renames: Renames) -> Node:
    inputs = tuple(renames[ref] for ref in node.inputs if ref != f"^{METADATA}")
    attrs = {k: v for k, v in node.attrs.items() if not k.startswith("_tpu_")}
    return node.changed(inputs=inputs, attrs=attrs, device="")


def _stacked(b: BatchInput) -> BatchInput:
    return b if b.shape.dims is None else replace(b, shape=Shape((-1, *b.shape.dims)))


def _as_stacked(node: Node) -> Node:
    """A placeholder for batches of several steps."""
    shape = node.attrs.get("shape")
    dims = shape.dims if isinstance(shape, Shape) else None
    stacked = Shape(None if dims is None else (-1, *dims))
    return node.changed(attrs={**node.attrs, "shape": stacked})
