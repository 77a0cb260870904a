"""Differences between arrays, absolute and relative."""

from collections.abc import Callable
from math import inf

import numpy as np

from harness.worker.variable_parts import Array

NOISE_FACTOR = 10.0
GROUP_SHARE = 1e-3
"""Share of the largest of a group that scales errors of those that are smaller."""


def largest_difference(value: Array, other: Array) -> float:
    """Return the largest absolute difference; infinite when anything is not finite."""
    if value.size == 0:
        return 0.0
    with np.errstate(invalid="ignore"):
        difference = float(np.max(np.abs(widened(value) - widened(other))))
    return difference if np.isfinite(difference) else inf


def difference_of_unequal(value: Array, other: Array) -> float:
    """Return the largest difference, where equal infinities, as of masks, are none."""
    difference = largest_difference(value, other)
    if difference < inf:
        return difference
    differs = value != other
    return largest_difference(value[differs], other[differs])


def largest_size(value: Array) -> float:
    """Return the largest absolute value; infinite when anything is not finite."""
    return largest_difference(value, np.zeros_like(value))


def relative_error(
    value: Array,
    expected: Array,
    scale: float,
    difference: Callable[[Array, Array], float] = largest_difference,
) -> float:
    """Return a difference as a share of a scale; infinite for other shapes and unequal exact numbers."""
    if value.shape != expected.shape:
        return inf
    if not is_inexact(expected):
        return 0.0 if np.array_equal(value, expected) else inf
    apart = difference(value, expected)
    if inf in (apart, scale):
        return inf
    if apart == 0.0:
        return 0.0
    return apart / scale if scale else inf


def widened(value: Array) -> Array:
    """Return the value in float64, or complex128 if it is complex; itself where it is that already."""
    return value.astype(np.complex128 if np.iscomplexobj(value) else np.float64, copy=False)


def is_inexact(value: Array) -> bool:
    """Return True if the numbers of a value are rounded: floating or complex."""
    # bfloat16 is a type of ml_dtypes, which NumPy does not count among its own floating types.
    return bool(np.issubdtype(value.dtype, np.inexact)) or value.dtype.name == "bfloat16"
