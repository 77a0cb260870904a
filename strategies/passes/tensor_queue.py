"""Queues of tensors with which nodes of one or several tasks wait for each other, without polling."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from strategies.ir.graph import Attr, DType, Node, Shape
from strategies.ir.tensor_proto import const

INT32, INT64, HANDLE = DType("int32"), DType("int64"), DType("resource")
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
    def of_handles(cls, name: str, device: str) -> "TensorQueue":
        """Make a queue of other queues' handles."""
        return cls.of(name, (HANDLE,), device, shapes=(_SCALAR,))

    @classmethod
    def of_tokens(cls, name: str, device: str) -> "TensorQueue":
        """Make a queue for one token, an int32 scalar."""
        return cls.of(name, (INT32,), device, capacity=1, shapes=(_SCALAR,))

    def put(self, name: str, refs: Sequence[str], after: Iterable[str] = ()) -> Node:
        """Node that puts tensors in as one element."""
        return self._node("QueueEnqueueV2", name, refs, after, {"Tcomponents": self.types, "timeout_ms": -1})

    def put_numbers(
        self, name: str, numbers: Sequence[int], *more: Sequence[int | Sequence[int]]
    ) -> tuple[Node, ...]:
        """Constants and node that puts their values in, one element each; the node is last.

        Args:
            numbers: first tensor of each element. more: further tensors of each element.
        """
        columns = [
            const(
                f"{self.handle.name}/{name}_numbers{f'_{k}' if k else ''}",
                INT64,
                values,
                device=self.handle.device,
            )
            for k, values in enumerate((numbers, *more))
        ]
        attrs: dict[str, Attr] = {"Tcomponents": self.types, "timeout_ms": -1}
        refs = [column.name for column in columns]
        return *columns, self._node("QueueEnqueueManyV2", name, refs, (), attrs)

    def take(self, name: str, after: Iterable[str] = ()) -> Node:
        """Node that waits for an element and takes it; its outputs are the tensors."""
        attrs: dict[str, Attr] = {"component_types": self.types, "timeout_ms": -1}
        return self._node("QueueDequeueV2", name, [], after, attrs)

    def take_several(self, name: str, n: str, after: Iterable[str]) -> Node:
        """Node that waits for a number of elements and takes them.

        Args:
            n: tensor of the number, int32, which may be 0.
        """
        attrs: dict[str, Attr] = {"component_types": self.types, "timeout_ms": -1}
        return self._node("QueueDequeueManyV2", name, [n], after, attrs)

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
