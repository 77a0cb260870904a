"""Owners of slots."""

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from strategies.ir.assembly.forward_update_split import Parts
from strategies.ir.assembly.traced import TracedVariable
from strategies.ir.assembly.written_values import UNCHANGED
from strategies.ir.graph import Graph, producer
from strategies.ir.partitioning.elementwise_ops import REDUCTIONS
from strategies.ir.traversal import topological_order
from strategies.ir.variable import Kind

Owners: TypeAlias = Mapping[str, tuple[str | None, str]]
"""Variable → the trainable that it is a slot of, if any, and its group."""
_REDUCTIONS = frozenset({*REDUCTIONS, "EuclideanNorm", "L2Loss", "Mean"})
_NUMBER = re.compile(r"__\d+$")


def slot_owners(
    variables: Sequence[TracedVariable], kinds: Mapping[str, Kind]
) -> dict[str, tuple[str | None, str]]:
    """Owners as optimizers tell them, else as Keras's names do: `adam/dense_kernel_momentum`.

    An update that names its slots otherwise gets slots of no owner, each in the group of its last name part.
    """
    by_flat_name = {v.name.replace("/", "_"): v.name for v in variables if kinds[v.name] == "trainable"}
    return {v.name: _owner(v, kinds, by_flat_name) for v in variables}


def _owner(
    v: TracedVariable, kinds: Mapping[str, Kind], by_flat_name: Mapping[str, str]
) -> tuple[str | None, str]:
    kind = kinds[v.name]
    if kind != "slot":
        return None, kind
    if v.slot_of is not None and kinds.get(v.slot_of) == "trainable":
        return v.slot_of, v.group or "slot"
    tail = v.name.rpartition("/")[2]
    end = tail.rfind("_")
    while end > 0:  # from the longest stem to the shortest
        if tail[:end] in by_flat_name:
            return by_flat_name[tail[:end]], tail[end + 1 :]
        end = tail.rfind("_", 0, end)
    return None, tail


def owners_by_data(
    graph: Graph,
    variables: Sequence[TracedVariable],
    parts: Parts,
    handles: Mapping[str, str],
    gradients: Mapping[str, str],
    owners: Owners,
) -> Owners:
    """Owners, with those of slots that have none by name: as `m` and `m__1` of an update that is written out.

    One belongs to the trainable of its shape whose gradient, value and slots alone make its new values; what
    a gradient is reduced to, as all are to their norm, does not count. What forward reads has no owner.

    Args:
        handles: variable → its handle. gradients: node of the boundary → the variable whose gradient it is.
        owners: by name.
    """
    shapes = {v.name: v.shape.dims for v in variables}
    trainables = {v.name for v in variables if parts.kinds[v.name] == "trainable"}
    able = {shapes[name] for name in trainables} - {None}
    left = [
        v.name
        for v in variables
        if parts.kinds[v.name] == "slot"
        and owners[v.name][0] is None
        and shapes[v.name] in able
        and not _is_read_by_forward(graph, parts, handles[v.name])
    ]
    known = dict(owners)
    while left:
        families = {name: name if name in trainables else owner for name, (owner, _) in known.items()}
        origins = {handles[name]: family for name, family in families.items() if family is not None}
        made_of = _made_of(graph, {**origins, **gradients})
        more: dict[str, tuple[str | None, str]] = {}
        for name in left:
            values = (
                producer(ref)
                for write in parts.writes[name]
                for ref in graph.by_name[write].data_inputs
                if producer(ref) != handles[name]
            )
            families_of = frozenset[str]().union(*(made_of[value] for value in values))
            owner = next(iter(families_of), None)
            if len(families_of) == 1 and owner is not None and shapes[owner] == shapes[name]:
                more[name] = owner, _NUMBER.sub("", known[name][1])
        if not more:
            break
        known |= more
        left = [name for name in left if name not in more]
    return known


def _is_read_by_forward(graph: Graph, parts: Parts, handle: str) -> bool:
    reads = parts.forward.intersection(parts.uses[handle].reads)
    return any(graph.by_name[name].op not in UNCHANGED for name in reads)


def _made_of(graph: Graph, origins: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """Node → the variables that it is made of, two of them at most, by what is no reduction."""
    made_of: dict[str, frozenset[str]] = {}
    for node in topological_order(graph.nodes):
        if node.name in origins:
            made_of[node.name] = frozenset((origins[node.name],))
        elif node.op in _REDUCTIONS:
            made_of[node.name] = frozenset()
        else:
            # The way back of a loop has not been met yet.
            of = frozenset[str]().union(*(made_of.get(producer(ref), ()) for ref in node.data_inputs))
            made_of[node.name] = of if len(of) <= 2 else frozenset(sorted(of)[:2])
    return made_of
