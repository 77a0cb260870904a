"""A server's accumulator of what tasks push for one boundary."""

from collections.abc import Iterable
from dataclasses import dataclass

from strategies.ir.boundary import Boundary, Contribution
from strategies.ir.graph import DType, Node, Shape, tensor
from strategies.numerics.combine import cast_ids, merge_rows
from strategies.plan.wire_types import accumulated_type
from strategies.tf_bridge.constants import constant
from strategies.tf_bridge.snippet import TensorSpec, trace

# An accumulator silently drops a contribution whose step is smaller than the number of updates it has made.
LAST_STEP = (1 << 63) - 1
INT32, INT64, DOUBLE = DType("int32"), DType("int64"), DType("double")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """What a task is about to push, in the accumulator's types: the whole, or rows and their merged ids."""

    nodes: tuple[Node, ...]
    values: str
    ids: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulator:
    """A server's sum of what tasks push for one boundary; tasks find it by its shared name.

    Attributes:
        required: contributions that a take waits for; it takes all that are there.
    """

    boundary: Boundary
    dtype: DType
    handle: Node
    required: int
    device: str

    @classmethod
    def of(cls, boundary: Boundary, device: str, required: int) -> "Accumulator":
        """The accumulator of a boundary on a device."""
        dtype = accumulated_type(boundary.dtype)
        handle = accumulator_node(
            f"accumulators/{boundary.values}",
            dtype,
            boundary.shape,
            device,
            sparse=boundary.indices is not None,
        )
        return cls(boundary=boundary, dtype=dtype, handle=handle, required=required, device=device)

    def push(self, contribution: Contribution, reads: Iterable[str], host: str) -> list[Node]:
        """Nodes that add a contribution once all its reads of the variable are done; the push is last."""
        step = constant(f"{self.handle.name}/step", LAST_STEP, INT64, self.device)
        pushed = self.prepare(contribution, host)
        shape, push = self.apply(pushed, step.name, reads)
        return [self.handle, step, *pushed.nodes, *shape, push]

    def prepare(self, contribution: Contribution, host: str) -> Pushed:
        """What comes before a push; rows are merged by the task itself, and whole values cast on arrival."""
        nodes: list[Node] = []
        at = self.device if contribution.indices is None else host
        values = self._cast(nodes, contribution.values, self.boundary.dtype, self.dtype, "push", at)
        if contribution.indices is None:
            return Pushed(nodes=tuple(nodes), values=values, ids=None)
        assert self.boundary.index_dtype is not None
        specs = (TensorSpec(dtype=self.dtype), TensorSpec(dtype=self.boundary.index_dtype))
        merged, (rows, ids) = trace(merge_rows, specs).splice(
            f"{self.handle.name}/merge/", [values, contribution.indices], device=host
        )
        cast, (ids,) = trace(cast_ids, (TensorSpec(dtype=self.boundary.index_dtype),), dtype="int64").splice(
            f"{self.handle.name}/ids/", [ids], device=host
        )
        return Pushed(nodes=(*nodes, *merged, *cast), values=rows, ids=ids)

    def apply(self, pushed: Pushed, step: str, after: Iterable[str]) -> tuple[list[Node], Node]:
        """The node that adds what is pushed to the sum, and the constants that it needs.

        Args:
            step: tensor of the contribution's step.
            after: nodes that run before.
        """
        if pushed.ids is None:
            return [], push_node(self.handle, step, pushed.values, self.dtype, after)
        shape = constant(f"{self.handle.name}/shape", self.boundary.shape.dims or (), INT64, self.device)
        return [shape], Node(
            name=f"{self.handle.name}/push",
            op="SparseAccumulatorApplyGradient",
            inputs=(
                self.handle.name,
                step,
                pushed.ids,
                pushed.values,
                shape.name,
                *(f"^{name}" for name in after),
            ),
            attrs={"dtype": self.dtype, "has_known_shape": True},
            device=self.device,
        )

    def take(self, after: Iterable[str] = ()) -> tuple[list[Node], Contribution]:
        """Nodes that wait for enough contributions and empty the accumulator, and what it held."""
        name = f"{self.handle.name}/take"
        sparse = self.boundary.indices is not None
        nodes = take_nodes(self.handle, name, self.required, self.dtype, after, sparse=sparse)
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


def accumulator_node(name: str, dtype: DType, shape: Shape, device: str, *, sparse: bool = False) -> Node:
    """A summing accumulator that all tasks share."""
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
    """A node that adds a dense value to an accumulator.

    Args:
        step: tensor of the contribution's step.
        after: nodes that run before.
    """
    return Node(
        name=f"{handle.name}/push",
        op="AccumulatorApplyGradient",
        inputs=(handle.name, step, value, *(f"^{name}" for name in after)),
        attrs={"dtype": dtype},
        device=handle.device,
    )


def take_nodes(
    handle: Node, name: str, required: int, dtype: DType, after: Iterable[str], *, sparse: bool = False
) -> list[Node]:
    """A take under this name and its number of required contributions; the take is last."""
    needed = constant(f"{name}/required", required, INT32, handle.device)
    waits = (f"^{node}" for node in after)
    take = Node(
        name=name,
        op="SparseAccumulatorTakeGradient" if sparse else "AccumulatorTakeGradient",
        inputs=(handle.name, needed.name, *waits),
        attrs={"dtype": dtype},
        device=handle.device,
    )
    return [needed, take]
