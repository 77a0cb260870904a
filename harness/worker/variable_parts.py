"""Values of partitioned variables: parts of the whole, and the whole of all parts."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np

from strategies.ir.variable import Part

Array: TypeAlias = np.ndarray[Any, Any]
Copy: TypeAlias = tuple[str, int | None]
"""A variable's name, and the rank of the replica with this copy; None for a copy shared by all replicas."""
Pieces: TypeAlias = Sequence[tuple[Part | None, Array]]
"""Value on a worker: the whole, or some of its parts."""
Held: TypeAlias = Mapping[Copy, Pieces]
_Key = TypeVar("_Key")


def of_part(whole: Array, part: Part | None) -> Array:
    """Range of a value that a part covers; the whole without a part."""
    if part is None:
        return whole
    return whole[(slice(None),) * part.axis + (slice(part.start, part.stop),)]


def joined(parts: Pieces) -> Array:
    """Whole value of all parts in any order, or of the only one."""
    first, value = parts[0]
    if first is None:
        return value
    # Workers number the parts that they have each for itself.
    ordered = sorted(((part.start, v) for part, v in parts if part is not None), key=lambda item: item[0])
    return np.concatenate([v for _, v in ordered], axis=first.axis)


def values_of(of_workers: Iterable[Mapping[_Key, Pieces]]) -> dict[_Key, Array]:
    """Whole value of every variable, from several workers' parts or from the first worker."""
    pieces: dict[_Key, list[tuple[Part | None, Array]]] = {}
    for own in of_workers:
        for key, values in own.items():
            pieces.setdefault(key, []).extend(values)
    return {key: joined(values) for key, values in pieces.items()}
