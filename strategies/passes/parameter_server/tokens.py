"""Tokens by which one task tells another that something has been done: no time-outs and no polling."""

from collections.abc import Iterable

from strategies.ir.graph import Attr, Node, Shape
from strategies.passes.parameter_server.accumulator import INT32
from strategies.tf_bridge.attrs import constant


def give_token(name: str, number: int, device: str, after: Iterable[str]) -> tuple[Node, Node, Node]:
    """Nodes that put a token into a queue once others have run; the last does.

    Args:
        name: of the queue, which the other task finds by it. device: of the queue.
    """
    queue = _queue(name, device)
    token = constant(f"{name}/token", number, INT32, device)
    attrs: dict[str, Attr] = {"Tcomponents": (INT32,), "timeout_ms": -1}
    inputs = (name, token.name, *(f"^{node}" for node in after))
    return (
        queue,
        token,
        Node(name=f"{name}/give", op="QueueEnqueueV2", inputs=inputs, attrs=attrs, device=device),
    )


def await_token(name: str, device: str, after: Iterable[str]) -> tuple[Node, Node]:
    """Nodes that wait for a token once others have run; the last does."""
    attrs: dict[str, Attr] = {"component_types": (INT32,), "timeout_ms": -1}
    inputs = (name, *(f"^{node}" for node in after))
    wait = Node(name=f"{name}/await", op="QueueDequeueV2", inputs=inputs, attrs=attrs, device=device)
    return _queue(name, device), wait


def _queue(name: str, device: str) -> Node:
    attrs: dict[str, Attr] = {
        "component_types": (INT32,),
        "shapes": (Shape(()),),
        "capacity": 1,
        "container": b"",
        "shared_name": name.encode(),
    }
    return Node(name=name, op="FIFOQueueV2", attrs=attrs, device=device)
