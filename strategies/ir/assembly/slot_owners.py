"""Owners of slots."""

from collections.abc import Mapping, Sequence

from strategies.ir.assembly.traced import TracedVariable
from strategies.ir.variable import Kind


def slot_owners(
    variables: Sequence[TracedVariable], kinds: Mapping[str, Kind]
) -> dict[str, tuple[str | None, str]]:
    """Variable → the trainable that it is a slot of, if any, and its group.

    Where the optimizer did not tell, Keras's names do: `adam/dense_kernel_momentum`. An update that names its
    slots otherwise gets slots of no owner, each in the group of its last name part.
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
