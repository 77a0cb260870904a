"""Between-graph synchronisation through parameter servers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.ir.effects import resource_uses
from strategies.ir.graph import Attr, DType, Node, Shape, tensor
from strategies.ir.late import late_nodes
from strategies.ir.train_graph import Boundary, Contribution, TrainGraph
from strategies.numerics.combine import cast_ids, merge_rows
from strategies.passes.rewire import contribute
from strategies.tf_bridge.constants import constant
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import UPDATER, Topology

# An accumulator silently drops a contribution whose step is smaller than the number of updates it has made.
LAST_STEP = (1 << 63) - 1
INT32, INT64 = DType("int32"), DType("int64")


@dataclass(frozen=True, kw_only=True, slots=True)
class ParameterServerSync:
    """Every task pushes its contribution to the variable's server; one task updates when all have come.

    Task 0 runs the takes and the update regions of all servers in its own session, so that the order between
    the captured updates (a shared step counter, a global norm) holds across servers; the work itself stays on
    them. Another task's step ends with a token that task 0 hands out after the update: nobody reads before
    it.

    Attributes:
        destinations: variable → task that serves it.
    """

    name: ClassVar[str] = "sync-ps"
    task: int
    destinations: Mapping[str, int]

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        """The step whose boundaries are fed by accumulators, on the updater, or only pushed to, elsewhere."""
        if topology.n_tasks == 1:
            return graph
        uses = resource_uses(graph.graph)
        handles = {v.name: v.handle for v in graph.variables if v.rank is None}
        updates = self.task == UPDATER
        pushes: list[str] = []
        added: list[Node] = []
        combined: dict[str, Contribution] = {}
        # Updates come after the push, and a session reads for itself when no step runs.
        late = late_nodes(graph, [v for v in graph.variables if v.rank is None])
        not_waited_for = graph.update_nodes() | {v.read for v in graph.variables} | late
        crossing = {boundary.variable for boundary in graph.boundaries}
        # What no gradient crosses (a step counter in the loss) is updated when all gradients have come.
        common = [
            read
            for name, handle in handles.items()
            if name not in crossing
            for read in uses[handle].reads
            if read not in not_waited_for
        ]
        for boundary in graph.boundaries:
            device = topology.host_device(self.destinations[boundary.variable])
            accumulator = _Accumulator.of(boundary, device, topology)
            own = uses[handles[boundary.variable]].reads
            reads = [*(name for name in own if name not in not_waited_for), *common]
            # What a task brings may be nothing but zeros, yet its push says that it has read the variable.
            nodes = accumulator.push(boundary.contributions[0], reads, topology.host_device(self.task))
            pushes.append(nodes[-1].name)
            added += nodes
            if updates:
                nodes, combined[boundary.values] = accumulator.take()
                added += nodes
        if updates:
            tokens = [_enqueue(w, graph.targets(), topology) for w in range(topology.n_tasks) if w != UPDATER]
            added += [node for nodes in tokens for node in nodes]
            return contribute(
                graph, combined, added, step_targets=(*pushes, *(nodes[-1].name for nodes in tokens))
            )
        wait = _dequeue(self.task, pushes, topology)
        # What is left of it belongs to this task's replicas; checks of what was updated are the updater's.
        own_state = tuple(t for t in graph.state_targets if t not in late)
        return replace(
            contribute(graph, combined, [*added, *wait]),
            boundaries=(),
            regions=(),
            shared_update=(),
            state_targets=own_state,
            step_targets=(*pushes, wait[-1].name),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Accumulator:
    """A server's sum of what tasks push for one boundary; tasks find it by its shared name."""

    boundary: Boundary
    dtype: DType
    handle: Node
    required: int
    device: str

    @classmethod
    def of(cls, boundary: Boundary, device: str, topology: Topology) -> "_Accumulator":
        name = f"accumulators/{boundary.values}"
        # Accumulators have kernels for half, float and double only.
        dtype = boundary.dtype if boundary.dtype in ("half", "float", "double") else DType("double")
        handle = Node(
            name=name,
            op="ConditionalAccumulator" if boundary.indices is None else "SparseConditionalAccumulator",
            attrs={
                "dtype": dtype,
                "shape": boundary.shape,
                "container": b"",
                "shared_name": name.encode(),
                "reduction_type": b"SUM",
            },
            device=device,
        )
        return cls(boundary=boundary, dtype=dtype, handle=handle, required=topology.n_tasks, device=device)

    def push(self, contribution: Contribution, reads: Iterable[str], host: str) -> list[Node]:
        """Nodes that add a task's contribution once all its reads of the variable are done."""
        waits = tuple(f"^{name}" for name in reads)
        nodes = [self.handle, step := constant(f"{self.handle.name}/step", LAST_STEP, INT64, self.device)]
        values = self._cast(nodes, contribution.values, self.boundary.dtype, self.dtype, "push", host)
        push = f"{self.handle.name}/push"
        if contribution.indices is None:
            inputs = (self.handle.name, step.name, values, *waits)
            attrs = {"dtype": self.dtype}
            nodes.append(
                Node(name=push, op="AccumulatorApplyGradient", inputs=inputs, attrs=attrs, device=self.device)
            )
            return nodes
        assert self.boundary.index_dtype is not None
        specs = (TensorSpec(dtype=self.dtype), TensorSpec(dtype=self.boundary.index_dtype))
        merged, (rows, ids) = trace(merge_rows, specs).splice(
            f"{self.handle.name}/merge/", [values, contribution.indices], device=host
        )
        cast, (ids,) = trace(cast_ids, (TensorSpec(dtype=self.boundary.index_dtype),), dtype="int64").splice(
            f"{self.handle.name}/ids/", [ids], device=host
        )
        shape = constant(f"{self.handle.name}/shape", self.boundary.shape.dims or (), INT64, self.device)
        nodes += [*merged, *cast, shape]
        nodes.append(
            Node(
                name=push,
                op="SparseAccumulatorApplyGradient",
                inputs=(self.handle.name, step.name, ids, rows, shape.name, *waits),
                attrs={"dtype": self.dtype, "has_known_shape": True},
                device=self.device,
            )
        )
        return nodes

    def take(self) -> tuple[list[Node], Contribution]:
        """Nodes that wait for all contributions and empty the accumulator, and what they hold."""
        name = f"{self.handle.name}/take"
        sparse = self.boundary.indices is not None
        required = constant(f"{name}/required", self.required, INT32, self.device)
        take = Node(
            name=name,
            op="SparseAccumulatorTakeGradient" if sparse else "AccumulatorTakeGradient",
            inputs=(self.handle.name, required.name),
            attrs={"dtype": self.dtype},
            device=self.device,
        )
        nodes = [required, take]
        values = tensor(name, 1) if sparse else name
        values = self._cast(nodes, values, self.dtype, self.boundary.dtype, "take", self.device)
        ids = None
        if self.boundary.index_dtype is not None:
            snippet = trace(cast_ids, (TensorSpec(dtype=INT64),), dtype=str(self.boundary.index_dtype))
            added, (ids,) = snippet.splice(f"{name}/ids/", [name], device=self.device)
            nodes += added
        return nodes, Contribution(rank=0, values=values, indices=ids, weight=1.0, total=True)

    def _cast(self, nodes: list[Node], ref: str, source: DType, wanted: DType, side: str, device: str) -> str:
        if source == wanted:
            return ref
        cast = Node(
            name=f"{self.handle.name}/{side}_cast",
            op="Cast",
            inputs=(ref,),
            attrs={"SrcT": source, "DstT": wanted, "Truncate": False},
            device=device,
        )
        nodes.append(cast)
        return cast.name


def _token_queue(worker: int, topology: Topology) -> Node:
    name = f"tokens/worker_{worker}"
    attrs: dict[str, Attr] = {
        "component_types": (INT32,),
        "shapes": (Shape(()),),
        "capacity": 1,
        "container": b"",
        "shared_name": name.encode(),
    }
    return Node(name=name, op="FIFOQueueV2", attrs=attrs, device=topology.host_device(UPDATER))


def _enqueue(worker: int, after: Iterable[str], topology: Topology) -> tuple[Node, Node, Node]:
    queue = _token_queue(worker, topology)
    token = constant(f"{queue.name}/token", worker, INT32, queue.device)
    attrs: dict[str, Attr] = {"Tcomponents": (INT32,), "timeout_ms": -1}
    inputs = (queue.name, token.name, *(f"^{name}" for name in after))
    give = Node(
        name=f"{queue.name}/give", op="QueueEnqueueV2", inputs=inputs, attrs=attrs, device=queue.device
    )
    return queue, token, give


def _dequeue(worker: int, after: Iterable[str], topology: Topology) -> tuple[Node, Node]:
    queue = _token_queue(worker, topology)
    attrs: dict[str, Attr] = {"component_types": (INT32,), "timeout_ms": -1}
    inputs = (queue.name, *(f"^{name}" for name in after))
    return queue, Node(
        name=f"{queue.name}/await", op="QueueDequeueV2", inputs=inputs, attrs=attrs, device=queue.device
    )
