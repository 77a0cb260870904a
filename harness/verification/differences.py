"""Differences between arrays, absolute and relative."""

from collections.abc import Callable
from math import inf

import numpy as np

from harness.worker.variable_parts import Array

NOISE_FACTOR = 10.0
GROUP_SHARE = 1e-3
"""Share of a group's largest movement, the least scale of errors in the group."""


def largest_difference(value: Array, other: Array) -> float:
    """Largest absolute difference; infinite if anything is not finite."""
    if value.size == 0:
        return 0.0
    with np.errstate(invalid="ignore"):
        difference = float(np.max(np.abs(widened(value) - widened(other))))
    return difference if np.isfinite(difference) else inf


def difference_of_unequal(value: Array, other: Array) -> float:
    """Largest difference, in which equal infinities, as in masks, are equal."""
    difference = largest_difference(value, other)
    if difference < inf:
        return difference
    differs = value != other
    return largest_difference(value[differs], other[differs])


def largest_size(value: Array) -> float:
    """Largest absolute value; infinite if anything is not finite."""
    return largest_difference(value, np.zeros_like(value))


def relative_error(
    value: Array,
    expected: Array,
    scale: float,
    difference: Callable[[Array, Array], float] = largest_difference,
) -> float:
    """Difference relative to a scale; infinite for other shapes and unequal exact numbers."""
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
    """Value in float64, or complex128 if it is complex."""
    return value.astype(np.complex128 if np.iscomplexobj(value) else np.float64, copy=False)


def is_inexact(value: Array) -> bool:
    """True if the numbers of a value are rounded: floating or complex."""
    # bfloat16 is a type of ml_dtypes, which NumPy does not count among its floating types.
    return bool(np.issubdtype(value.dtype, np.inexact)) or value.dtype.name == "bfloat16"
