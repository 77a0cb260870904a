"""Gradients of one level as a worker's vector, and a rule over all workers' vectors, also on a server."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from strategies.ir.graph import DType, Node, Shape, n_elements, tensor
from strategies.ir.tensor_proto import const
from strategies.ir.train_graph import Boundary, Contribution
from strategies.ir.traversal import at_level
from strategies.numerics.aggregators import states
from strategies.numerics.compressors import StateSpec
from strategies.numerics.gradient_vectors import (
    Layout,
    as_vector,
    combined_gradients,
    marked_rows,
    take_all,
)
from strategies.passes.collectives.buckets import row_shape, static_dims
from strategies.passes.replicate.rewire import sync_prefix, total
from strategies.passes.replicate.state_variables import StateVariable
from strategies.passes.task_plan import TaskPlan
from strategies.passes.tensor_queue import HANDLE, TensorQueue
from strategies.plan.aggregation import Aggregation
from strategies.plan.faults import Fault
from strategies.plan.payload import vector_type
from strategies.tf_bridge.attrs import dtype_number
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import Topology

INT64 = DType("int64")
SEED = 0
"""Seed of random draws of rules: the same on all workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Tensors that a worker sends: one vector, then rows and marked ids of each sparse gradient."""

    nodes: tuple[Node, ...]
    tensors: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregated:
    """Result of a rule over the gradients of all workers.

    Attributes:
        combined: `Boundary.values` → contribution that flows into the boundary.
        state: variables that are kept between steps. keeps: nodes that assign their next values.
        counts: tensor [3, n] of the counts so far.
    """

    nodes: tuple[Node, ...]
    combined: Mapping[str, Contribution]
    state: tuple[StateVariable, ...]
    keeps: tuple[Node, ...]
    counts: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientVector:
    """Gradients of one level in a fixed order; a rule's vector spans all of them.

    Attributes:
        boundaries: dense boundaries, then sparse ones.
        dtype: type of the vectors: float, or double if any gradient is double.
    """

    aggregation: Aggregation
    level: int
    boundaries: tuple[Boundary, ...]
    dtype: DType
    faults: tuple[Fault, ...] = ()

    @classmethod
    def of(
        cls, aggregation: Aggregation, boundaries: Sequence[Boundary], faults: tuple[Fault, ...]
    ) -> "GradientVector":
        """Make the vector of one level's boundaries, of one replica or shared by all."""
        sparse = [b for b in boundaries if b.indices is not None]
        dense = [b for b in boundaries if b.indices is None]
        return cls(
            aggregation=aggregation,
            level=boundaries[0].level,
            boundaries=(*dense, *sparse),
            dtype=vector_type(b.dtype for b in boundaries),
            faults=faults,
        )

    @property
    def name(self) -> str:
        return at_level("aggregate", self.level)

    @property
    def dense(self) -> tuple[Boundary, ...]:
        return tuple(b for b in self.boundaries if b.indices is None)

    @property
    def sparse(self) -> tuple[Boundary, ...]:
        return tuple(b for b in self.boundaries if b.indices is not None)

    @property
    def size(self) -> int:
        return sum(n_elements(static_dims(b)) for b in self.dense)

    @property
    def sent_types(self) -> tuple[DType, ...]:
        return (self.dtype, *(dtype for _ in self.sparse for dtype in (self.dtype, INT64)))

    def sent(self, task: int, device: str) -> Sent:
        """Nodes that prepare the tensors that a worker sends."""
        number = dtype_number(self.dtype)
        specs = tuple(TensorSpec(dtype=b.dtype, shape=b.shape) for b in self.dense)
        nodes, (vector,) = trace(as_vector, specs, dtype=number).splice(
            f"{self.name}/vector/", [b.contributions[0].values for b in self.dense], device=device
        )
        tensors = [vector]
        for b in self.sparse:
            own = b.contributions[0]
            assert own.indices is not None
            assert b.index_dtype is not None
            rows = (
                TensorSpec(dtype=b.dtype, shape=row_shape(b)),
                TensorSpec(dtype=b.index_dtype, shape=Shape((-1,))),
            )
            snippet = trace(marked_rows, rows, owner=task, n_rows=static_dims(b)[0], dtype=number)
            added, marked = snippet.splice(
                f"{self.name}/{sync_prefix(b)}/rows/", [own.values, own.indices], device=device
            )
            nodes += added
            tensors += marked
        return Sent(nodes=nodes, tensors=tuple(tensors))

    def aggregated(
        self,
        received: Sequence[str],
        topology: Topology,
        *,
        rank: int,
        owners: tuple[int, ...],
        device: str,
        gathered: bool,
    ) -> Aggregated:
        """Nodes that combine the tensors of all workers.

        Args:
            received: tensors in the order of `combined_gradients`, without the rule's state and the counts.
            rank: replica that holds the rule's state. owners: all replicas with such a state.
            gathered: True if all workers' contributions are one tensor, see `Layout`.
        """
        state = self._state(rank, owners, device)
        layout = Layout(
            dtype=dtype_number(self.dtype),
            dense=tuple((static_dims(b), dtype_number(b.dtype)) for b in self.dense),
            sparse=tuple(
                (static_dims(b), dtype_number(b.dtype), dtype_number(b.index_dtype or INT64))
                for b in self.sparse
            ),
            gathered=gathered,
        )
        snippet = trace(
            combined_gradients,
            (
                *self._received_specs(gathered=gathered),
                *(TensorSpec(dtype=k.variable.dtype, shape=k.variable.shape) for k in state),
            ),
            layout=layout,
            aggregation=self.aggregation,
            shares=_shares(topology),
            seed=SEED,
            faults=self.faults,
        )
        prefix = f"{self.name}/rule/replica_{rank}/"
        nodes, results = snippet.splice(prefix, [*received, *(k.value for k in state)], device=device)
        combined = {}
        values = iter(results)
        for b in self.boundaries:
            rows, ids = next(values), None if b.indices is None else next(values)
            combined[b.values] = total(rank, rows, ids)
        keeps = tuple(kept_state.keep(value) for kept_state, value in zip(state, values, strict=True))
        return Aggregated(
            nodes=(*(node for kept_state in state for node in kept_state.nodes), *nodes),
            combined=combined,
            state=state,
            keeps=keeps,
            counts=state[-1].variable.read,
        )

    def _received_specs(self, *, gathered: bool) -> tuple[TensorSpec, ...]:
        n = 1 if gathered else self.aggregation.n
        whole = Shape((self.aggregation.n * self.size,) if gathered else (self.size,))
        specs = [TensorSpec(dtype=self.dtype, shape=whole)] * n
        for b in self.sparse:
            specs += [TensorSpec(dtype=self.dtype, shape=row_shape(b))] * n
            specs += [TensorSpec(dtype=INT64, shape=Shape((-1,)))] * n
        return tuple(specs)

    def _state(self, rank: int, owners: tuple[int, ...], device: str) -> tuple[StateVariable, ...]:
        counts = StateSpec(name="counts", dims=(3, self.aggregation.n), dtype="int64")
        specs = states(self.aggregation, self.size, str(self.dtype))
        return tuple(
            StateVariable.of(
                spec,
                f"{self.name}/{spec.name}",
                group="aggregation",
                path=f"{self.name}/{spec.name}",
                rank=rank,
                device=device,
                owners=owners,
                shared=True,
                lasting=spec is not counts,
            )
            for spec in (*specs, counts)
        )


def by_level(plan: TaskPlan, boundaries: Sequence[Boundary]) -> tuple[GradientVector, ...]:
    """Vectors of these boundaries, one per level: those of an update wait for the gradients before it."""
    aggregation = plan.aggregation
    if aggregation is None:
        return ()
    levels = sorted({b.level for b in boundaries})
    return tuple(
        GradientVector.of(aggregation, [b for b in boundaries if b.level == level], plan.faults)
        for level in levels
    )


def _shares(topology: Topology) -> tuple[float, ...]:
    examples = (sum(r.examples for r in topology.local_replicas(t)) for t in range(topology.n_tasks))
    return tuple(count / topology.batch_size for count in examples)


MOST_QUEUES = 16
"""Number of workers up to which each has a queue of its own, from which nothing is copied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerGathering:
    """Queues on a server, found by their shared names; each holds one worker's tensors of a step.

    Many workers share one queue, so that the server's graph does not grow with them.

    Attributes:
        device: server's device. task: task that receives the gradients.
        name: prefix of the queues' names.
    """

    vector: GradientVector
    device: str
    task: int
    name: str

    @property
    def _is_shared(self) -> bool:
        return self.vector.aggregation.n > MOST_QUEUES

    def push(self, task: int, sent: Sent, after: Iterable[str]) -> list[Node]:
        """Nodes that send a worker's prepared tensors after other nodes; the push is last."""
        if not self._is_shared:
            queue = self._queue(task)
            return [queue.handle, queue.put("push", sent.tensors, after)]
        queue = self._shared_queue
        number = const(f"{queue.handle.name}/worker_{task}", INT64, task, device=self.device)
        return [queue.handle, number, queue.put("push", [number.name, *sent.tensors], after)]

    def take(self, topology: Topology, rank: int, owners: tuple[int, ...]) -> tuple[list[Node], Aggregated]:
        """Nodes that wait for all workers and take their vectors, and the nodes of the rule.

        The receiving task makes them, in addition to its own push.

        Args:
            rank: replica whose session holds the rule's state. owners: all replicas with such a state.
        """
        nodes, received = self._taken_together() if self._is_shared else self._taken(topology)
        aggregated = self.vector.aggregated(
            received, topology, rank=rank, owners=owners, device=self.device, gathered=self._is_shared
        )
        return nodes, aggregated

    def _taken(self, topology: Topology) -> tuple[list[Node], list[str]]:
        takes: list[Node] = []
        nodes: list[Node] = []
        for task in range(topology.n_tasks):
            queue = self._queue(task)
            take = queue.take("take")
            takes.append(take)
            # This task's own push already has the queue.
            nodes += [take] if task == self.task else [queue.handle, take]
        n_sent = len(self.vector.sent_types)
        # Every worker's vectors, then for each sparse gradient every worker's rows and every worker's ids.
        return nodes, [tensor(take.name, kind) for kind in range(n_sent) for take in takes]

    def _taken_together(self) -> tuple[list[Node], list[str]]:
        vector, queue = self.vector, self._shared_queue
        snippet = trace(
            take_all,
            (TensorSpec(dtype=HANDLE),),
            n=vector.aggregation.n,
            size=vector.size,
            rows=tuple(static_dims(b)[1:] for b in vector.sparse),
            dtype=dtype_number(vector.dtype),
        )
        nodes, received = snippet.splice(
            f"{queue.handle.name}/take/", [queue.handle.name], device=self.device
        )
        return list(nodes), list(received)

    def _queue(self, task: int) -> TensorQueue:
        return TensorQueue.of(f"{self.name}/worker_{task}", self.vector.sent_types, self.device, capacity=1)

    @property
    def _shared_queue(self) -> TensorQueue:
        return TensorQueue.of(f"{self.name}/workers", (INT64, *self.vector.sent_types), self.device)
