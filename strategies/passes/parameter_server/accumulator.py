"""Accumulator on a server, into which tasks push for one boundary."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from strategies.ir.graph import DType, Node, Shape, tensor
from strategies.ir.tensor_proto import const
from strategies.ir.train_graph import Boundary, Contribution
from strategies.numerics.combine import cast_ids, later_numbers, merge_ascending, number_rows, numbered_ids
from strategies.passes.replicate.rewire import total
from strategies.plan.payload import accumulated_type
from strategies.tf_bridge.snippet import TensorSpec, trace

# An accumulator silently drops a contribution whose step is smaller than the number of updates it has made.
LAST_STEP = (1 << 63) - 1
_MOST_ROWS = 1 << 32
"""Maximum number of rows of a variable of unknown length."""
_MOST_HELD = 1 << 10
"""Maximum number of contributions between two takes, if pushes do not wait for updates."""
INT32, INT64, DOUBLE = DType("int32"), DType("int64"), DType("double")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """Values to be pushed, in the accumulator's types: the whole, or rows and ascending ids."""

    nodes: tuple[Node, ...]
    values: str
    ids: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulator:
    """Sum on a server of the values that tasks push for one boundary; tasks find it by its shared name.

    TensorFlow adds up rows of equal ids. To keep them apart, each row gets a unique id: its number × n_ids +
    its id. A take then returns the rows of all contributions in the order of their numbers.

    Attributes:
        required: number of contributions that a take waits for; it takes all that have arrived.
    """

    boundary: Boundary
    dtype: DType
    handle: Node
    required: int
    device: str

    @classmethod
    def of(cls, boundary: Boundary, device: str, required: int) -> "Accumulator":
        """Make the accumulator of a boundary on a device."""
        dtype = accumulated_type(boundary.dtype)
        handle = accumulator_node(
            f"accumulators/{boundary.values}",
            dtype,
            _held_shape(boundary),
            device,
            sparse=boundary.indices is not None,
        )
        return cls(boundary=boundary, dtype=dtype, handle=handle, required=required, device=device)

    @property
    def _keeps_rows(self) -> bool:
        return _keeps_rows(self.boundary)

    @property
    def _n_ids(self) -> int:
        dims = self.boundary.shape.dims
        return dims[0] if dims and dims[0] > 0 else _MOST_ROWS

    def _stride(self, n_slots: int) -> int:
        """Number of ids reserved for each contribution, if `n_slots` contributions are held at a time."""
        return (LAST_STEP // n_slots // self._n_ids) * self._n_ids

    def push(
        self, contribution: Contribution, reads: Iterable[str], host: str, *, task: int, n_tasks: int
    ) -> list[Node]:
        """Nodes that push a contribution once all its reads of the variable are done; the push is last.

        Args:
            host: device of the task. task: task that contributes. n_tasks: number of tasks that push once
                before a take.
        """
        step = const(f"{self.handle.name}/step", INT64, LAST_STEP, device=self.device)
        first_number = task * (self._stride(n_tasks) // self._n_ids)
        pushed = self.prepare(contribution, host, first_number)
        shape, push = self.apply(pushed, step.name, reads)
        return [self.handle, step, *pushed.nodes, *shape, push]

    def prepare(self, contribution: Contribution, host: str, first_number: int = 0) -> Pushed:
        """Prepare a push: rows are prepared on the task itself; whole values are cast on arrival.

        Args:
            first_number: number of the first row, used if rows of equal ids are kept apart.
        """
        nodes: list[Node] = []
        at = self.device if contribution.indices is None else host
        values = self._cast(nodes, contribution.values, self.boundary.dtype, self.dtype, "push", at)
        if contribution.indices is None:
            return Pushed(nodes=tuple(nodes), values=values, ids=None)
        assert self.boundary.index_dtype is not None
        specs = (TensorSpec(dtype=self.dtype), TensorSpec(dtype=self.boundary.index_dtype))
        snippet = (
            trace(number_rows, specs, n_ids=self._n_ids, first=first_number)
            if self._keeps_rows
            else trace(merge_ascending, specs)
        )
        ready, (rows, ids) = snippet.splice(
            f"{self.handle.name}/rows/", [values, contribution.indices], device=host
        )
        return Pushed(nodes=(*nodes, *ready), values=rows, ids=ids)

    def apply_after_others(self, pushed: Pushed, step: str, after: Iterable[str]) -> tuple[list[Node], Node]:
        """Variant of `apply` for contributions that arrive one after the other, any number before a take."""
        after = tuple(after)
        if pushed.ids is None or not self._keeps_rows:
            return self.apply(pushed, step, after)
        delayed = Node(
            name=f"{self.handle.name}/held",
            op="AccumulatorNumAccumulated",
            inputs=(self.handle.name,),
            device=self.device,
        ).waiting_for(*after)
        specs = (TensorSpec(dtype=INT64), TensorSpec(dtype=INT32))
        later, (ids,) = trace(
            later_numbers, specs, stride=self._stride(_MOST_HELD), n_slots=_MOST_HELD
        ).splice(f"{self.handle.name}/later/", [pushed.ids, delayed.name], device=self.device)
        shape, push = self.apply(replace(pushed, ids=ids), step, after)
        return [delayed, *later, *shape], push

    def apply(self, pushed: Pushed, step: str, after: Iterable[str]) -> tuple[list[Node], Node]:
        """Node that adds pushed values to the sum, and the constants that it needs.

        Args:
            step: tensor of the contribution's step.
            after: nodes to run before it.
        """
        if pushed.ids is None:
            return [], push_node(self.handle, step, pushed.values, self.dtype, after)
        shape = const(
            f"{self.handle.name}/shape", INT64, _held_shape(self.boundary).dims or (), device=self.device
        )
        push = Node(
            name=f"{self.handle.name}/push",
            op="SparseAccumulatorApplyGradient",
            inputs=(self.handle.name, step, pushed.ids, pushed.values, shape.name),
            attrs={"dtype": self.dtype, "has_known_shape": True},
            device=self.device,
        )
        return [shape], push.waiting_for(*after)

    def take(self, after: Iterable[str] = ()) -> tuple[list[Node], Contribution]:
        """Nodes that wait for enough contributions and empty the accumulator, and the contribution taken."""
        name = f"{self.handle.name}/take"
        sparse = self.boundary.indices is not None
        nodes = take_nodes(self.handle, name, self.required, self.dtype, after, sparse=sparse)
        values = tensor(name, 1) if sparse else name
        values = self._cast(nodes, values, self.dtype, self.boundary.dtype, "take", self.device)
        ids = None
        if self.boundary.index_dtype is not None:
            wanted = str(self.boundary.index_dtype)
            specs = (TensorSpec(dtype=INT64),)
            snippet = (
                trace(numbered_ids, specs, n_ids=self._n_ids, dtype=wanted)
                if self._keeps_rows
                else trace(cast_ids, specs, dtype=wanted)
            )
            added, (ids,) = snippet.splice(f"{name}/ids/", [name], device=self.device)
            nodes += added
        return nodes, total(0, values, ids)

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


def _keeps_rows(boundary: Boundary) -> bool:
    return boundary.indices is not None and not boundary.merged


def _held_shape(boundary: Boundary) -> Shape:
    """Shape that an accumulator checks; the ids of rows kept apart exceed the variable's length."""
    dims = boundary.shape.dims
    return Shape((-1, *dims[1:])) if dims and _keeps_rows(boundary) else boundary.shape


def accumulator_node(name: str, dtype: DType, shape: Shape, device: str, *, sparse: bool = False) -> Node:
    """Summing accumulator that all tasks share."""
    return Node(
        name=name,
        op="SparseConditionalAccumulator" if sparse else "ConditionalAccumulator",
        attrs={
            "dtype": dtype,
            "shape": shape,
            "container": b"",
            "shared_name": name.encode(),
            "reduction_type": b"SUM",
        },
        device=device,
    )


def push_node(handle: Node, step: str, value: str, dtype: DType, after: Iterable[str]) -> Node:
    """Node that adds a dense value to an accumulator.

    Args:
        step: tensor of the contribution's step.
        after: nodes to run before it.
    """
    return Node(
        name=f"{handle.name}/push",
        op="AccumulatorApplyGradient",
        inputs=(handle.name, step, value),
        attrs={"dtype": dtype},
        device=handle.device,
    ).waiting_for(*after)


def take_nodes(
    handle: Node, name: str, required: int, dtype: DType, after: Iterable[str], *, sparse: bool = False
) -> list[Node]:
    """Nodes of a take with this name and its number of required contributions; the take is last."""
    needed = const(f"{name}/required", INT32, required, device=handle.device)
    take = Node(
        name=name,
        op="SparseAccumulatorTakeGradient" if sparse else "AccumulatorTakeGradient",
        inputs=(handle.name, needed.name),
        attrs={"dtype": dtype},
        device=handle.device,
    )
    return [needed, take.waiting_for(*after)]
