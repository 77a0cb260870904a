"""Sorting of many short columns at once: rows are compared and exchanged in pairs, whole rows at a time.

A network's comparators are the same for all columns, so that each is a minimum and a maximum of two vectors.
"""

from collections.abc import Iterable, Sequence
from functools import cache

import tensorflow as tf

Comparators = tuple[tuple[int, int], ...]


@cache
def comparators(n: int) -> Comparators:
    """Pairs of wires to be put in order, one after the other.

    Source:
        Batcher 1968, Sorting networks and their applications: odd-even merge sort, for any n.
    """
    pairs: list[tuple[int, int]] = []
    merged = 1
    while merged < n:
        distance = merged
        while distance >= 1:
            for start in range(distance % merged, n - distance, 2 * distance):
                pairs.extend(
                    (low, low + distance)
                    for low in range(start, start + min(distance, n - distance - start))
                    if low // (2 * merged) == (low + distance) // (2 * merged)
                )
            distance //= 2
        merged *= 2
    return tuple(pairs)


def sorted_wires(wires: Sequence[tf.Tensor], wanted: Iterable[int]) -> dict[int, tf.Tensor]:
    """Sort across wires, element by element.

    Args:
        wires: tensors of one shape.
        wanted: which of the sorted ones are needed, from 0, the smallest; what others alone need is left out.
    Returns:
        place → values, of those wanted.
    """
    needed = set(wanted)
    kept = set(needed)
    steps = []
    for low, high in reversed(comparators(len(wires))):
        if low in needed or high in needed:
            steps.append((low, high, low in needed, high in needed))
            needed |= {low, high}
    now = dict(enumerate(wires))
    for low, high, takes_low, takes_high in reversed(steps):
        one, other = now[low], now[high]
        if takes_low:
            now[low] = tf.minimum(one, other)
        if takes_high:
            now[high] = tf.maximum(one, other)
    return {place: now[place] for place in kept}
