"""Values of variables in parts: what a part holds of the whole, and the whole of what parts hold."""

from collections.abc import Sequence

import numpy as np

from harness.equivalence import Array
from strategies.ir.train_graph import Part


def of_part(whole: Array, part: Part | None) -> Array:
    """The range of a value that a part holds; all of it where there is no part."""
    if part is None:
        return whole
    return whole[(slice(None),) * part.axis + (slice(part.start, part.stop),)]


def joined(parts: Sequence[tuple[Part | None, Array]]) -> Array:
    """The value of which these are all parts, in any order; or the only one, which is whole."""
    first, value = parts[0]
    if first is None:
        return value
    ordered = sorted(((part.index, v) for part, v in parts if part is not None), key=lambda item: item[0])
    return np.concatenate([v for _, v in ordered], axis=first.axis)
