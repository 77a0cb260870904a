"""Rules of aggregation as their definitions read: slow and plain, in exact fractions where they can be.

Written from the papers that `strategies.numerics.aggregators` cites, apart from that code.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
Exact = list[Fraction]
Rows = Sequence[Exact]


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


def combined(contributions: Sequence[Vector], asked: Asked) -> Vector:
    """What a rule makes of contributions; those that are not finite are left out."""
    finite = sorted(tuple(c) for c in contributions if np.isfinite(c).all())
    f = max(asked.f - (len(contributions) - len(finite)), 0)
    rows = [[Fraction(float(value)) for value in row] for row in finite]
    if asked.mixed:
        rows = [_mean([rows[j] for j in _nearest(rows, i, len(rows) - f)]) for i in range(len(rows))]
        # The mixed rows are floats, as a rule sees them.
        rows = [[Fraction(float(value)) for value in row] for row in rows]
    return _floats(_RULES[asked.rule](rows, f, asked))


def _krum(rows: Rows, f: int, asked: Asked) -> Exact:
    scores = [_score(rows, range(len(rows)), i, len(rows) - f - 2) for i in range(len(rows))]
    best = sorted(range(len(rows)), key=lambda i: (scores[i], i))[: asked.m]
    return _mean([rows[i] for i in best])


def _bulyan(rows: Rows, f: int, asked: Asked) -> Exact:
    rounds = len(rows) - 2 * f - (2 if asked.variant == "aggregathor" else 0)
    left: list[int] = list(range(len(rows)))
    chosen: list[int] = []
    for _ in range(rounds):
        n_nearest = min(max(len(left) - f - 2, 1), len(left) - 1)
        best = min((_score(rows, left, i, n_nearest), i) for i in left)[1]
        chosen.append(best)
        left.remove(best)
    return _around_median([rows[i] for i in sorted(chosen)], rounds - 2 * f)


def _mda(rows: Rows, f: int, _: Asked) -> Exact:
    subsets = combinations(range(len(rows)), len(rows) - f)
    return _mean([rows[i] for i in min((_diameter(rows, s), s) for s in subsets)[1]])


def _floats(values: Sequence[Fraction]) -> Vector:
    return np.array([float(value) for value in values])


def _mean_of(values: Sequence[Fraction]) -> Fraction:
    return sum(values, Fraction(0)) / len(values)


def _mean(rows: Rows) -> Exact:
    return [_mean_of(column) for column in zip(*rows, strict=True)]


def _median(column: Sequence[Fraction]) -> Fraction:
    ordered, n = sorted(column), len(column)
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2


def _around_median(rows: Rows, count: int) -> Exact:
    result = []
    for column in zip(*rows, strict=True):
        # Of floats, as a rule computes it.
        centre = Fraction(float(_median(column)))
        closest = sorted(range(len(column)), key=lambda i: (abs(column[i] - centre), i))[:count]
        result.append(_mean_of([column[i] for i in closest]))
    return result


def _square(one: Exact, other: Exact) -> Fraction:
    return sum(((a - b) ** 2 for a, b in zip(one, other, strict=True)), Fraction(0))


def _score(rows: Rows, pool: Sequence[int], i: int, n_nearest: int) -> Fraction:
    others = sorted(_square(rows[i], rows[j]) for j in pool if j != i)
    return sum(others[:n_nearest], Fraction(0))


def _nearest(rows: Rows, i: int, count: int) -> list[int]:
    return sorted(range(len(rows)), key=lambda j: (_square(rows[i], rows[j]), j))[:count]


def _diameter(rows: Rows, subset: Sequence[int]) -> Fraction:
    return max((_square(rows[i], rows[j]) for i, j in combinations(subset, 2)), default=Fraction(0))


def _norm(values: Sequence[Fraction]) -> Fraction:
    most = max((abs(value) for value in values), default=Fraction(0))
    if not most:
        return most
    return most * Fraction(math.sqrt(sum(((value / most) ** 2 for value in values), Fraction(0))))


def _weiszfeld(rows: Rows, _: int, asked: Asked) -> Exact:
    centre = [Fraction(float(_median(column))) for column in zip(*rows, strict=True)]
    for _ in range(asked.iterations):
        distances = [_norm([a - b for a, b in zip(row, centre, strict=True)]) for row in rows]
        weights = [1 / max(distance, Fraction(asked.nu)) for distance in distances]
        total = sum(weights, Fraction(0))
        centre = [
            sum((w * v for w, v in zip(weights, column, strict=True)), Fraction(0)) / total
            for column in zip(*rows, strict=True)
        ]
        centre = [Fraction(float(value)) for value in centre]
    return centre


def _clipped(rows: Rows, _: int, asked: Asked) -> Exact:
    first = np.zeros(len(rows[0])) if asked.centre is None else asked.centre
    centre, tau = [Fraction(float(value)) for value in first], Fraction(asked.tau)
    for _ in range(asked.iterations):
        moves = []
        for row in rows:
            apart = [a - b for a, b in zip(row, centre, strict=True)]
            # As a float, of whose powers of two sums are quick: the root before it is one as well.
            share = Fraction(float(tau / max(_norm(apart), tau)))
            moves.append([value * share for value in apart])
        centre = [a + b for a, b in zip(centre, _mean(moves), strict=True)]
    return centre


_RULES: Mapping[str, Callable[[Rows, int, Asked], Exact]] = {
    "mean": lambda rows, _f, _asked: _mean(rows),
    "median": lambda rows, _f, _asked: [_median(column) for column in zip(*rows, strict=True)],
    "trimmed-mean": lambda rows, f, _: [
        _mean_of(sorted(column)[f : len(rows) - f]) for column in zip(*rows, strict=True)
    ],
    "meamed": lambda rows, f, _: _around_median(rows, len(rows) - f),
    "krum": _krum,
    "multi-krum": _krum,
    "bulyan": _bulyan,
    "mda": _mda,
    "geometric-median": _weiszfeld,
    "centered-clipping": _clipped,
}
