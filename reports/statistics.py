"""Ratios and intervals from independent repeats that were not paired, and figures of single cases.

The unit of evidence is one *repeat*: a fresh set of processes. Steps within a repeat share caches,
placement and neighbours, so they are not independent; each repeat therefore counts once, with its median
step time. Times are positive, skewed to the right and compared by ratio, so everything happens on logarithms:

    x_i  = log(median of repeat i)
    central figure          exp(mean(x))                                     geometric mean of the medians
    interval of a figure    exp(mean(x) ± t_{n-1} · s / √n)                  Student 1908
    ratio a : b             exp(mean(x_a) - mean(x_b))
    interval of a ratio     exp(difference ± t_df · √(s_a²/n_a + s_b²/n_b))   Welch 1947
    degrees of freedom df   (v_a + v_b)² / (v_a²/(n_a-1) + v_b²/(n_b-1)),  v = s²/n
    p of a ratio            share of the relabellings whose |difference| is at least the observed one
                            (Fisher 1935; sampled: Phipson and Smyth 2010, arXiv:1603.05766)

Below three repeats a spread is a guess, so there is no interval; below five on either side the smallest p
that a permutation can reach is above 1 in 100, so there is none. Both are said in words instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations

import numpy as np
from scipy.special import stdtrit

from harness.records.comparing.student_interval import CONFIDENCE, MIN_REPEATS_INTERVAL

MIN_REPEATS_TEST = 5
MAX_EXACT_SPLITS = 20_000
MONTE_CARLO_SPLITS = 20_000
# What is worked on at once, so that it stays in a processor's cache.
_DRAWN_VALUES = 500_000


Chosen = np.ndarray[tuple[int, ...], np.dtype[np.int32]]


class StatisticsError(ValueError):
    """Repeats from which no figure can be made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Limits of a confidence interval, in the figure's own unit."""

    low: float
    high: float

    def contains(self, value: float) -> bool:
        """Whether `value` lies within the limits."""
        return self.low <= value <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A central figure of n repeats, with its interval or the reason why there is none."""

    value: float
    n: int
    interval: Interval | None
    why_no_interval: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A ratio of two central figures, with its interval and p, or the reasons why they are missing.

    Attributes:
        is_paired: whether it was formed within rounds, see `reports.paired_statistics`.
        least_effect: the smallest ratio above 1 that would most likely have been told from 1.
    """

    value: float
    n: int
    n_baseline: int
    interval: Interval | None
    why_no_interval: str | None
    p_value: float | None
    why_no_p: str | None
    is_paired: bool = False
    least_effect: float | None = None

    def inverse(self) -> Ratio:
        """The same pair the other way around: all of it was formed on logarithms."""
        low, high = (None, None) if self.interval is None else (self.interval.low, self.interval.high)
        interval = None if low is None or high is None else Interval(low=1.0 / high, high=_reciprocal(low))
        return replace(self, value=1.0 / self.value, n=self.n_baseline, n_baseline=self.n, interval=interval)


def _reciprocal(value: float) -> float:
    return 1.0 / value if value > 0.0 else math.inf


def estimate(values: Sequence[float], *, confidence: float = CONFIDENCE) -> Estimate:
    """Geometric mean of the repeats with a t interval on their logarithms.

    Args:
        values: one figure per repeat, each positive and finite.
        confidence: coverage of the interval, in (0, 1).
    Raises:
        StatisticsError: when there is no value, or one is not positive and finite.
    Source:
        Student 1908, "The probable error of a mean".
    """
    logs = _logs(values)
    n = len(logs)
    mean = float(logs.mean())
    if n < MIN_REPEATS_INTERVAL:
        return Estimate(value=math.exp(mean), n=n, interval=None, why_no_interval=f"n={n}: no interval")
    half = _t_quantile(n - 1, confidence) * math.sqrt(float(logs.var(ddof=1)) / n)
    return Estimate(value=math.exp(mean), n=n, interval=_exp_interval(mean, half), why_no_interval=None)


def ratio(
    values: Sequence[float],
    baseline: Sequence[float],
    *,
    confidence: float = CONFIDENCE,
    tested: bool = True,
    seed: int = 0,
) -> Ratio:
    """Ratio of two sets of repeats, with Welch's interval and a permutation test.

    Args:
        values: one figure per repeat of the numerator, each positive and finite.
        baseline: the same for the denominator; the lengths may differ.
        confidence: coverage of the interval, in (0, 1).
        tested: whether p is wanted too, which takes nearly all of the time.
        seed: of the sampled permutation test; exact tests do not use it.
    Raises:
        StatisticsError: when a side is empty, or a value is not positive and finite.
    Source:
        Welch 1947, "The generalization of Student's problem when several different population variances are
        involved".
    """
    top, bottom = _logs(values), _logs(baseline)
    n_top, n_bottom = len(top), len(bottom)
    difference = float(top.mean() - bottom.mean())
    counts = f"n={n_top}" if n_top == n_bottom else f"n={n_top} against {n_bottom}"
    interval = None
    if min(n_top, n_bottom) >= MIN_REPEATS_INTERVAL:
        interval = _exp_interval(difference, _welch_half_width(top, bottom, confidence))
    enough = min(n_top, n_bottom) >= MIN_REPEATS_TEST
    p_value = permutation_p(values, baseline, seed=seed) if tested and enough else None
    return Ratio(
        value=math.exp(difference),
        n=n_top,
        n_baseline=n_bottom,
        interval=interval,
        why_no_interval=None if interval else f"{counts}: no interval",
        p_value=p_value,
        why_no_p=None if p_value is not None else f"{counts}: no test" if not enough else "not asked for",
    )


def permutation_p(values: Sequence[float], baseline: Sequence[float], *, seed: int = 0) -> float:
    """Two-sided p of the hypothesis that the labels of the two sets of repeats are interchangeable.

    All splits are counted where there are at most `MAX_EXACT_SPLITS`; otherwise seeded random ones, with
    the observed split counted as one of them so that p is never 0.

    Raises:
        StatisticsError: when a side is empty, or a value is not positive and finite.
    Source:
        Phipson and Smyth 2010, "Permutation p-values should never be zero", arXiv:1603.05766.
    """
    top, bottom = _logs(values), _logs(baseline)
    pooled = np.concatenate([top, bottom])
    n_top, n_all = len(top), len(pooled)
    n_splits = math.comb(n_all, n_top)
    exact = n_splits <= MAX_EXACT_SPLITS
    chosen = _all_splits(n_top, n_all) if exact else _drawn_splits(n_top, n_all, seed)
    at_once = max(1, _DRAWN_VALUES // n_top)
    pieces = (chosen[start : start + at_once] for start in range(0, len(chosen), at_once))
    sums = np.concatenate([pooled[piece].sum(axis=1) for piece in pieces])
    differences = np.abs(sums / n_top - (pooled.sum() - sums) / (n_all - n_top))
    observed = abs(float(top.mean() - bottom.mean()))
    # Relabellings that equal the observed split differ from it by rounding only; the slack counts them in.
    slack = 1e-9 * max(observed, float(np.abs(pooled).max()), 1e-300)
    extreme = int(np.count_nonzero(differences >= observed - slack))
    return extreme / n_splits if exact else (extreme + 1) / (MONTE_CARLO_SPLITS + 1)


# What a split chooses does not depend on the figures: all rows of a report have the same.
@lru_cache(maxsize=2)
def _all_splits(n_top: int, n_all: int) -> Chosen:
    """Places of every choice of `n_top` figures out of `n_all`, a line each."""
    return np.array(list(combinations(range(n_all), n_top)), dtype=np.int32)


@lru_cache(maxsize=2)
def _drawn_splits(n_top: int, n_all: int, seed: int) -> Chosen:
    """Places of seeded random choices of `n_top` figures out of `n_all`, a line each."""
    rng = np.random.default_rng(seed)
    chosen = np.empty((MONTE_CARLO_SPLITS, n_top), dtype=np.int32)
    at_once = max(1, _DRAWN_VALUES // n_all)
    for start in range(0, MONTE_CARLO_SPLITS, at_once):
        piece = chosen[start : start + at_once]
        # The order among the chosen does not matter, so that no line is sorted.
        piece[:] = np.argpartition(rng.random((len(piece), n_all)), n_top, axis=1)[:, :n_top]
    return chosen


def _logs(values: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Logarithms of the repeats' figures, checked."""
    if not values:
        raise StatisticsError(
            "statistics: at least one repeat is needed, got none; leave the row without a figure"
        )
    bad = [value for value in values if not (math.isfinite(value) and value > 0)]
    if bad:
        raise StatisticsError(
            f"statistics: figures per repeat must be positive and finite, got {bad[0]!r}; leave it out"
        )
    return np.log(np.asarray(values, dtype=np.float64))


def _t_quantile(degrees: float, confidence: float) -> float:
    """Two-sided quantile of Student's t."""
    return float(stdtrit(degrees, 0.5 + confidence / 2))


def _welch_half_width(
    top: np.ndarray[tuple[int], np.dtype[np.float64]],
    bottom: np.ndarray[tuple[int], np.dtype[np.float64]],
    confidence: float,
) -> float:
    """Half the width of Welch's interval for the difference of two means."""
    v_top = float(top.var(ddof=1)) / len(top)
    v_bottom = float(bottom.var(ddof=1)) / len(bottom)
    total = v_top + v_bottom
    if total == 0.0:
        return 0.0
    # Shares instead of variances: squares of tiny variances would underflow to 0 / 0.
    share_top, share_bottom = v_top / total, v_bottom / total
    degrees = 1.0 / (share_top**2 / (len(top) - 1) + share_bottom**2 / (len(bottom) - 1))
    return _t_quantile(degrees, confidence) * math.sqrt(total)


def _exp_interval(middle: float, half: float) -> Interval:
    """Interval on the original scale; a spread too wide for a float is open at that end."""
    return Interval(low=_exp(middle - half), high=_exp(middle + half))


def _exp(value: float) -> float:
    """`math.exp` that answers infinity instead of raising."""
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf
