"""Whose slot each slot is."""

from collections.abc import Mapping, Sequence

from strategies.ir.traced import TracedVariable
from strategies.ir.train_graph import Kind


def slot_owners(
    variables: Sequence[TracedVariable], kinds: Mapping[str, Kind]
) -> dict[str, tuple[str | None, str]]:
    """Variable → the trainable that it is a slot of, if any, and its group.

    Where the optimizer did not tell, Keras's names do: `adam/dense_kernel_momentum`. An update that names its
    slots otherwise gets slots of no owner, each in the group of its last name part.
    """
    trainables = {v.name.replace("/", "_"): v.name for v in variables if kinds[v.name] == "trainable"}
    return {v.name: _owner(v, kinds[v.name], trainables) for v in variables}


def _owner(v: TracedVariable, kind: Kind, trainables: Mapping[str, str]) -> tuple[str | None, str]:
    if kind != "slot":
        return None, kind
    if v.slot_of in trainables.values():
        return v.slot_of, v.group or "slot"
    tail = v.name.rpartition("/")[2]
    stem = max((flat for flat in trainables if tail.startswith(f"{flat}_")), key=len, default=None)
    return (None, tail) if stem is None else (trainables[stem], tail[len(stem) + 1 :])
