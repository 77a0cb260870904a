"""Queues of tensors with which nodes of one or several tasks wait for each other, without polling."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from strategies.ir.graph import Attr, DType, Node, Shape
from strategies.ir.tensor_proto import const

INT32, INT64 = DType("int32"), DType("int64")
_SCALAR = Shape(())


@dataclass(frozen=True, slots=True)
class TensorQueue:
    """Queue whose elements are several tensors, between nodes of any tasks, which share its name.

    Attributes:
        types: types of the tensors of one element.
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
        """Make the queue of a name on a device.

        Args:
            capacity: maximum number of elements; -1 for no limit.
            shapes: shapes of the tensors; needed to put or take several elements at once.
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
        """Make a queue of int64 scalars."""
        return cls.of(name, (INT64,), device, shapes=(_SCALAR,))

    @classmethod
    def of_tokens(cls, name: str, device: str) -> "TensorQueue":
        """Make a queue for one token, an int32 scalar."""
        return cls.of(name, (INT32,), device, capacity=1, shapes=(_SCALAR,))

    def put(self, name: str, refs: Sequence[str], after: Iterable[str] = ()) -> Node:
        """Node that puts tensors in as one element."""
        return self._node("QueueEnqueueV2", name, refs, after, {"Tcomponents": self.types, "timeout_ms": -1})

    def put_numbers(self, name: str, numbers: Sequence[int]) -> tuple[Node, Node]:
        """Constant and node that puts its numbers in, one element each."""
        values = const(f"{self.handle.name}/{name}_numbers", INT64, numbers, device=self.handle.device)
        attrs: dict[str, Attr] = {"Tcomponents": self.types, "timeout_ms": -1}
        return values, self._node("QueueEnqueueManyV2", name, [values.name], (), attrs)

    def take(self, name: str, after: Iterable[str] = ()) -> Node:
        """Node that waits for an element and takes it; its outputs are the tensors."""
        attrs: dict[str, Attr] = {"component_types": self.types, "timeout_ms": -1}
        return self._node("QueueDequeueV2", name, [], after, attrs)

    def take_rest(self, name: str, after: Iterable[str]) -> tuple[Node, Node]:
        """Nodes that take all elements that are present; the last one returns them."""
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
