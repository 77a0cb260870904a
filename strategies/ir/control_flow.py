"""Frames of TensorFlow 1 loops (Enter, Merge, Switch, NextIteration, Exit), and nested branches.

A control edge between two frames cannot run: nodes outside wait for the loop's Exits instead.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from strategies.ir.graph import Function, Graph, Node, after, producer
from strategies.ir.ops import BRANCHES, ENTERS, EXITS, FORWARDING_OPS, READ_OPS
from strategies.ir.traversal import reachable_functions, topological_order

Frame: TypeAlias = tuple[bytes, ...]
"""Names of the loops around a node, outermost first; empty outside all loops."""


@dataclass(frozen=True, slots=True)
class LoopFrames:
    """Frames of a graph's loops.

    Attributes:
        frames: node in a loop → the frame of its outputs.
        exits: frame → its used Exit nodes; all of them if none is used.
    """

    frames: Mapping[str, Frame]
    exits: Mapping[Frame, tuple[str, ...]]

    @classmethod
    def of(cls, graph: Graph) -> "LoopFrames":
        frames: dict[str, Frame] = {}
        exits: dict[Frame, list[str]] = {}
        if not any(node.op in ENTERS for node in graph.nodes):
            return cls({}, {})
        for node in topological_order(graph.nodes):
            frame = _inside(node, frames)
            if node.op in ENTERS:
                name = node.attrs["frame_name"]
                assert isinstance(name, bytes)
                frame = (*frame, name)
            elif node.op in EXITS:
                exits.setdefault(frame, []).append(node.name)
                frame = frame[:-1]
            if frame:
                frames[node.name] = frame
        used = {frame: tuple(n for n in names if n in graph.consumers) for frame, names in exits.items()}
        return cls(frames, {frame: used[frame] or tuple(names) for frame, names in exits.items()})

    def crosses(self, name: str, node: Node) -> bool:
        return self.frames.get(name, ()) != _inside(node, self.frames)

    def outside(self, names: Iterable[str]) -> tuple[str, ...]:
        """Replace nodes in a loop by the Exits of the loop."""
        waits: dict[str, None] = {}
        for name in names:
            frame = self.frames.get(name)
            waits |= dict.fromkeys((name,) if frame is None else self.exits.get(frame[:1], ()))
        return tuple(waits)


def _inside(node: Node, frames: Mapping[str, Frame]) -> Frame:
    """Frame of a node's data; for a node without data, the frame in which it waits."""
    return max(
        (frames.get(producer(ref), ()) for ref in node.data_inputs or node.inputs), key=len, default=()
    )


def without_waits_across_loops(graph: Graph, must_run: tuple[str, ...]) -> tuple[Graph, tuple[str, ...]]:
    """Drop control edges that tf.function laid across the borders of imported loops.

    Assignments still follow the end of loops that took their handle. What a loop's Merge waited for is added
    to `must_run`.

    Returns:
        Graph and `must_run`; the same objects if no edge crosses a border.
    """
    loops = LoopFrames.of(graph)
    lost: dict[str, list[str]] = {
        node.name: crossing
        for node in graph.nodes
        if (crossing := [name for name in node.control_inputs if loops.crosses(name, node)])
    }
    if not lost:
        return graph, must_run
    released = dict.fromkeys(
        name
        for node, names in lost.items()
        if graph.by_name[node].op == "Merge"
        for name in names
        if graph.by_name[name].op not in READ_OPS | FORWARDING_OPS
    )
    nodes = [
        _without(node, lost[node.name], loops, graph) if node.name in lost else node for node in graph.nodes
    ]
    return graph.with_nodes(nodes), tuple(dict.fromkeys((*must_run, *released)))


def _without(node: Node, lost: Iterable[str], loops: LoopFrames, graph: Graph) -> Node:
    removed = dict.fromkeys(lost)
    waits = [name for name in node.control_inputs if name not in removed]
    if node.op not in READ_OPS | FORWARDING_OPS and not _inside(node, loops.frames):
        enters = (graph.by_name[name] for name in removed)
        handles = [n.name for n in enters if n.op in ENTERS and n.attrs.get("T") == "resource"]
        waits += loops.outside(handles)
    return node.changed(inputs=(*node.data_inputs, *after(dict.fromkeys(waits))))


LOWERING_ATTR = "_lower_using_switch_merge"


def spread_branches(graph: Graph) -> Graph:
    """Lower branches inside a branch that reaches variables of several devices.

    A branch in a function runs as one node, on one device.
    """
    by_name = graph.by_name
    spread = [node for node in graph.nodes if node.op in BRANCHES and _reaches_several(node, by_name)]
    names = reachable_functions(spread, graph.functions)
    if not any(node.op in BRANCHES for name in names for node in graph.functions[name].nodes):
        return graph
    lowered = {name: _lowering_branches(graph.functions[name]) for name in names}
    return replace(graph, functions={**graph.functions, **lowered})


def _reaches_several(node: Node, by_name: Mapping[str, Node]) -> bool:
    sources = [by_name[producer(ref)] for ref in node.inputs]
    return len({source.device for source in sources if source.op == "VarHandleOp"}) > 1


def _lowering_branches(function: Function) -> Function:
    nodes = tuple(
        replace(node, attrs={**node.attrs, LOWERING_ATTR: True}) if node.op in BRANCHES else node
        for node in function.nodes
    )
    return replace(function, nodes=nodes)
