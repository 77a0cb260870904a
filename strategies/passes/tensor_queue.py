"""Queues of tensors, by which nodes of one task or several wait for each other: no time-outs, no polling."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from strategies.ir.graph import Attr, DType, Node, Shape
from strategies.ir.tensor_proto import const

INT32, INT64 = DType("int32"), DType("int64")
_SCALAR = Shape(())


@dataclass(frozen=True, slots=True)
class TensorQueue:
    """Tensors that travel together between nodes, on any task, which find it by its shared name.

    Attributes:
        types: of the tensors that one element has.
    """

    handle: Node
    types: tuple[DType, ...]

    @classmethod
    def of(
        cls,
        name: str,
        types: Iterable[DType],
        device: str,
        *,
        capacity: int = -1,
        shapes: tuple[Shape, ...] = (),
    ) -> "TensorQueue":
        """The queue of a name on a device.

        Args:
            capacity: elements that it holds at most; never full unless given.
            shapes: of the tensors; needed to put or take several elements at once.
        """
        types = tuple(types)
        attrs: dict[str, Attr] = {
            "component_types": types,
            "shapes": shapes,
            "capacity": capacity,
            "container": b"",
            "shared_name": name.encode(),
        }
        return cls(Node(name=name, op="FIFOQueueV2", attrs=attrs, device=device), types)

    @classmethod
    def of_numbers(cls, name: str, device: str) -> "TensorQueue":
        """The queue of int64 scalars of a name on a device."""
        return cls.of(name, (INT64,), device, shapes=(_SCALAR,))

    @classmethod
    def of_tokens(cls, name: str, device: str) -> "TensorQueue":
        """The queue of a name on a device that holds one token, an int32 scalar."""
        return cls.of(name, (INT32,), device, capacity=1, shapes=(_SCALAR,))

    def put(self, name: str, refs: Sequence[str], after: Iterable[str] = ()) -> Node:
        """A node that puts tensors in, as one element."""
        return self._node("QueueEnqueueV2", name, refs, after, {"Tcomponents": self.types, "timeout_ms": -1})

    def put_numbers(self, name: str, numbers: Sequence[int]) -> tuple[Node, Node]:
        """A constant and a node that puts its numbers in, as an element each."""
        values = const(f"{self.handle.name}/{name}_numbers", INT64, numbers, device=self.handle.device)
        attrs: dict[str, Attr] = {"Tcomponents": self.types, "timeout_ms": -1}
        return values, self._node("QueueEnqueueManyV2", name, [values.name], (), attrs)

    def take(self, name: str, after: Iterable[str] = ()) -> Node:
        """A node that takes an element out once there is one; its outputs are the tensors."""
        attrs: dict[str, Attr] = {"component_types": self.types, "timeout_ms": -1}
        return self._node("QueueDequeueV2", name, [], after, attrs)

    def take_rest(self, name: str, after: Iterable[str]) -> tuple[Node, Node]:
        """Nodes that take all elements out that are in; the latter has them."""
        size = self._node("QueueSizeV2", f"{name}_size", [], after, {})
        attrs: dict[str, Attr] = {"component_types": self.types, "timeout_ms": -1}
        return size, self._node("QueueDequeueManyV2", name, [size.name], (), attrs)

    def _node(
        self, op: str, name: str, data: Sequence[str], after: Iterable[str], attrs: dict[str, Attr]
    ) -> Node:
        node = Node(
            name=f"{self.handle.name}/{name}",
            op=op,
            inputs=(self.handle.name, *data),
            attrs=attrs,
            device=self.handle.device,
        )
        return node.waiting_for(*after)
