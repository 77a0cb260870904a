"""Fewer points and digits than were stored: as many as a chart can show."""

from __future__ import annotations

import math

import numpy as np


def spread(n: int, most: int) -> list[int]:
    """At most `most` of n places, evenly, the first and the last included."""
    places: list[int] = np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(int)).tolist()
    return places


def short(value: float, *, significant: int) -> float | None:
    """A number of so many digits, None where it is not finite."""
    return float(f"{value:.{significant}g}") if math.isfinite(value) else None
