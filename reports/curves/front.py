"""The front of a trade-off: what no other beats in one figure without losing in the other."""

from __future__ import annotations

from collections.abc import Mapping


def undominated(points: Mapping[str, tuple[float, float]]) -> tuple[str, ...]:
    """Names than which no other is at least as good in both figures and better in one.

    Args:
        points: name → two figures, more is better in each.
    """
    return tuple(
        name
        for name, (first, second) in points.items()
        if not any(
            one >= first and two >= second and (one, two) != (first, second) for one, two in points.values()
        )
    )
