"""Rules of aggregation as their definitions read, in plain NumPy: slow, short, and in float64.

Written from the papers that `strategies.numerics.aggregators` cites, apart from that code.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A rule and its knobs; `f` counts contributions that are not finite among the faulty ones."""

    rule: str
    f: int
    m: int = 0
    variant: str = "bulyan"
    iterations: int = 8
    nu: float = 1e-6
    tau: float = 1.0
    mixed: bool = False
    centre: Vector | None = None


def combined(contributions: Sequence[Vector], aggregation: Asked) -> Vector:
    """Combine finite contributions by a rule; others are left out."""
    finite = sorted(tuple(c) for c in contributions if np.isfinite(c).all())
    f = max(aggregation.f - (len(contributions) - len(finite)), 0)
    rows = np.array(finite)
    if aggregation.mixed:
        rows = np.array([rows[_nearest(rows, i, len(rows) - f)].mean(axis=0) for i in range(len(rows))])
    return _RULES[aggregation.rule](rows, f, aggregation)


def _krum(rows: Vector, f: int, aggregation: Asked) -> Vector:
    scores = [_score(rows, range(len(rows)), i, len(rows) - f - 2) for i in range(len(rows))]
    best = sorted(range(len(rows)), key=lambda i: (scores[i], i))[: aggregation.m]
    return _mean(rows[best])


def _bulyan(rows: Vector, f: int, aggregation: Asked) -> Vector:
    rounds = len(rows) - 2 * f - (2 if aggregation.variant == "aggregathor" else 0)
    left: list[int] = list(range(len(rows)))
    chosen: list[int] = []
    for _ in range(rounds):
        n_nearest = min(max(len(left) - f - 2, 1), len(left) - 1)
        best = min((_score(rows, left, i, n_nearest), i) for i in left)[1]
        chosen.append(best)
        left.remove(best)
    return _around_median(rows[sorted(chosen)], rounds - 2 * f)


def _mda(rows: Vector, f: int, _: Asked) -> Vector:
    subsets = combinations(range(len(rows)), len(rows) - f)
    return _mean(rows[list(min((_diameter(rows, s), s) for s in subsets)[1])])


def _mean(rows: Vector) -> Vector:
    return rows.mean(axis=0)


def _around_median(rows: Vector, count: int) -> Vector:
    result = []
    for column in rows.T:
        centre = np.median(column)
        closest = sorted(range(len(column)), key=lambda i: (abs(column[i] - centre), i))[:count]
        result.append(column[closest].mean())
    return np.array(result)


def _square(one: Vector, other: Vector) -> float:
    return float(np.square(one - other).sum())


def _score(rows: Vector, pool: Sequence[int], i: int, n_nearest: int) -> float:
    others = sorted(_square(rows[i], rows[j]) for j in pool if j != i)
    return sum(others[:n_nearest])


def _nearest(rows: Vector, i: int, count: int) -> list[int]:
    return sorted(range(len(rows)), key=lambda j: (_square(rows[i], rows[j]), j))[:count]


def _diameter(rows: Vector, subset: Sequence[int]) -> float:
    return max((_square(rows[i], rows[j]) for i, j in combinations(subset, 2)), default=0.0)


def _weiszfeld(rows: Vector, _: int, aggregation: Asked) -> Vector:
    centre = np.median(rows, axis=0)
    for _ in range(aggregation.iterations):
        weights = 1 / np.maximum(np.linalg.norm(rows - centre, axis=1), aggregation.nu)
        centre = (weights[:, None] * rows).sum(axis=0) / weights.sum()
    return centre


def _clipped(rows: Vector, _: int, aggregation: Asked) -> Vector:
    centre = np.zeros(rows.shape[1]) if aggregation.centre is None else aggregation.centre
    for _ in range(aggregation.iterations):
        shares = aggregation.tau / np.maximum(np.linalg.norm(rows - centre, axis=1), aggregation.tau)
        centre = centre + (shares[:, None] * (rows - centre)).mean(axis=0)
    return centre


_RULES: Mapping[str, Callable[[Vector, int, Asked], Vector]] = {
    "mean": lambda rows, _f, _asked: _mean(rows),
    "median": lambda rows, _f, _asked: np.median(rows, axis=0),
    "trimmed-mean": lambda rows, f, _: np.sort(rows, axis=0)[f : len(rows) - f].mean(axis=0),
    "meamed": lambda rows, f, _: _around_median(rows, len(rows) - f),
    "krum": _krum,
    "multi-krum": _krum,
    "bulyan": _bulyan,
    "mda": _mda,
    "geometric-median": _weiszfeld,
    "centered-clipping": _clipped,
}
