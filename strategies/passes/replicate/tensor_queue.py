"""Queues that pass tensors of any type and shape from one run of a graph to another."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from strategies.ir.graph import Attr, DType, Node


@dataclass(frozen=True, slots=True)
class TensorQueue:
    """Tensors that travel together, found by the queue's shared name; it is never full."""

    handle: Node
    types: tuple[DType, ...]

    @classmethod
    def of(cls, name: str, types: Sequence[DType], device: str) -> "TensorQueue":
        """The queue of a name on a device, for as many tensors at a time as there are types."""
        attrs: dict[str, Attr] = {
            "component_types": tuple(types),
            "shapes": (),
            "capacity": -1,
            "container": b"",
            "shared_name": name.encode(),
        }
        return cls(Node(name=name, op="FIFOQueueV2", attrs=attrs, device=device), tuple(types))

    def put(self, name: str, refs: Sequence[str], after: Iterable[str] = ()) -> Node:
        """A node that puts tensors in."""
        waits = (f"^{node}" for node in after)
        return Node(
            name=name,
            op="QueueEnqueueV2",
            inputs=(self.handle.name, *refs, *waits),
            attrs={"Tcomponents": self.types, "timeout_ms": -1},
            device=self.handle.device,
        )

    def take(self, name: str, after: Iterable[str] = ()) -> Node:
        """A node that takes tensors out, its outputs, once there are some."""
        waits = (f"^{node}" for node in after)
        return Node(
            name=name,
            op="QueueDequeueV2",
            inputs=(self.handle.name, *waits),
            attrs={"component_types": self.types, "timeout_ms": -1},
            device=self.handle.device,
        )
