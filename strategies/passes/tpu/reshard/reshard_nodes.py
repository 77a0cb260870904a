"""Nodes of resharding: what brings one replica's variables into a format, and what waits for that."""

from collections.abc import Sequence
from dataclasses import dataclass

from strategies.ir.graph import Attr, DType, Node, Shape, TensorValue
from strategies.ir.text.tensors import tensor_proto
from strategies.passes.tpu.compiled.handles import handle_node
from strategies.passes.tpu.compiled.scopes import Scope

FORMAT_KEY = Shape((3,))
"""Of a program's key, and so of a format: three strings; the default format's are empty."""
_STRING = DType("string")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFormat:
    """What resharding must know of one replica of a computation.

    Attributes:
        prefix: put before names of nodes: that of the compile node, and the replica's place.
        device: where the replica's program is executed.
        shared_name: of the variable that holds the present format.
    """

    prefix: str
    device: str
    shared_name: str

    @classmethod
    def of(cls, scope: Scope, compile_name: str, execute: Node, place: int) -> "ReplicaFormat":
        """Of an execute of a compile node."""
        prefix = f"{compile_name}/reshard_{place}/"
        place_in_library = "/".join(filter(None, (scope.name, compile_name, str(place))))
        return cls(prefix=prefix, device=execute.device, shared_name=f"stratbench/format/{place_in_library}")

    def state(self, waits: Sequence[str] = ()) -> Node:
        """A handle of the variable that holds the present format; it begins without a value.

        Args:
            waits: nodes that run before; a handle that takes nothing is in a loop where it waits there.
        """
        handle = handle_node(
            f"{self.prefix}state",
            shared_name=self.shared_name,
            dtype=_STRING,
            shape=FORMAT_KEY,
            device=self.device,
        )
        return handle.changed(inputs=_after(waits))

    def default_key(self, waits: Sequence[str]) -> Node:
        """The key of the default format."""
        proto = tensor_proto("string", (3,), (b"", b"", b""))
        attrs: dict[str, Attr] = {"dtype": _STRING, "value": TensorValue(proto)}
        return Node(
            name=f"{self.prefix}default_key",
            op="Const",
            inputs=_after(waits),
            attrs=attrs,
            device=self.device,
        )

    def reshard(self, name: str, handles: Sequence[str], key: str, state: str, waits: Sequence[str]) -> Node:
        """What brings variables into a format, where they are not in it.

        Args:
            handles, key, state: references.
            waits: nodes that run before.
        """
        return Node(
            name=self.prefix + name,
            op="TPUReshardVariables",
            inputs=(*handles, key, state, *_after(waits)),
            attrs={"N": len(handles)},
            device=self.device,
        )


def identity(name: str, ref: str, dtype: Attr, device: str, waits: Sequence[str] = ()) -> Node:
    """A node that passes a tensor on after certain nodes have run."""
    return Node(
        name=name,
        op="Identity",
        inputs=(ref, *_after(waits)),
        attrs={"T": dtype},
        device=device,
    )


def no_op(name: str, waits: Sequence[str], device: str) -> Node:
    """A node that does nothing after certain nodes have run."""
    return Node(name=name, op="NoOp", inputs=_after(waits), device=device)


def _after(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"^{name}" for name in names)
