"""Waits for many nodes, by a node on each device for those on it."""

from collections import defaultdict
from collections.abc import Iterable

from strategies.ir.graph import Node


def joined(names: Iterable[tuple[str, str]], name: str) -> list[Node]:
    """A node on each device that comes after those on it, so that others need to wait for one each.

    Args:
        names: nodes, each with the device that it is or will be on.
    """
    by_device: dict[str, list[str]] = defaultdict(list)
    for node, device in names:
        by_device[device].append(node)
    return [
        Node(name=f"{name}_{k}", op="NoOp", inputs=tuple(f"^{n}" for n in nodes), device=device)
        for k, (device, nodes) in enumerate(by_device.items())
    ]
