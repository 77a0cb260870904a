"""Assignments of trainables and slots that the forward pass makes and reads, of what variables hold already.

SpectralNormalization divides a kernel so before it uses it; a target network follows before it is asked. Each
shard computes the same value, so that its forward pass takes the value, and the assignment joins the update.
"""

from collections.abc import Mapping

from strategies.errors import CaptureError
from strategies.ir.assembly.forward_update_split import Parts
from strategies.ir.assembly.resources import Access, redirected
from strategies.ir.assembly.written_values import (
    WrittenValues,
    is_assignment,
    waiting_elsewhere,
    without_waits,
)
from strategies.ir.functions import called_functions
from strategies.ir.graph import DType, Graph
from strategies.ir.traversal import descendants


def calls_after_writes(graph: Graph, parts: Parts) -> set[str]:
    """Loops, branches and calls of the forward pass that read a variable after an assignment of the step."""
    calls = set()
    for uses in parts.uses.values():
        writes = set(uses.writes)
        for name in parts.forward.intersection(uses.reads):
            node = graph.by_name[name]
            if called_functions(node.attrs) and not writes.isdisjoint(node.control_inputs):
                calls.add(name)
    return calls


def with_values_read(graph: Graph, parts: Parts, access: Mapping[str, Access]) -> Graph:
    """The graph whose forward pass reads no such assignment.

    Returns:
        The same object when it reads none.
    Raises:
        CaptureError: when such an assignment is made in a loop or branch, or its value is not plainly read.
    """
    from_gradients = descendants(graph, parts.boundary, control=False)
    written = WrittenValues(graph)
    for name, kind in parts.kinds.items():
        own = {w: w not in from_gradients for w in parts.writes[name]}
        if kind == "state" or not any(own.values()):
            continue
        handle = access[name].handle
        dtype = handle.attrs["dtype"]
        assert isinstance(dtype, DType)
        reads = [r for r in parts.uses[handle.name].reads if r in parts.forward]
        for write in written.take(name, dtype, own, reads).values():
            node = graph.by_name[write]
            if not is_assignment(node):
                raise CaptureError(
                    f"variable {name!r}: what the forward pass assigns and reads must be assigned at the top "
                    f"of the step, got a write by {node.op} {write!r}; return the new value from the loop or "
                    "branch, then assign it",
                    node=write,
                )
    if not written.waits:
        return graph
    assigned = set(written.waits.values())
    nodes = [
        without_waits(node, assigned | set(written.values))
        if node.name in parts.forward
        else waiting_elsewhere(node, written.waits)
        for node in written.inserted(graph.nodes)
        if node.name not in written.values
    ]
    return graph.with_nodes(redirected(nodes, written.ending()))
