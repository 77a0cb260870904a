"""Figures, ratios and intervals of independent repeats.

The unit of evidence is one *repeat*: a fresh set of processes. Steps within a repeat share caches,
placement and neighbours, so they are not independent; each repeat therefore counts once, with its median
step time. Times are positive, skewed to the right and compared by ratio, so everything happens on logarithms:

    x_i  = log(median of repeat i)
    central figure          exp(mean(x))                                     geometric mean of the medians
    interval of a figure    exp(mean(x) ± t_{n-1} · s / √n)                  Student 1908

Cases that took windows in turn are compared within each round, because a slow minute falls on both alike:

    d_ir = log(a in round r of repeat i) - log(b in the same round)
    d_i  = mean of d_ir without the highest and the lowest fifth of the rounds     Tukey and McLaughlin 1963
    ratio a : b             exp(mean(d))
    interval                exp(mean(d) ± t_{n-1} · s / √n)                          Student 1908
    p                       that of t, from three repeats on; from eight on, where it can be below 1 in 100,
                            share of the choices of signs whose |sum| is at least the observed one
                                                                                     Fisher 1935
    smallest effect seen    exp((t_{n-1; 0.975} + t_{n-1; 0.8}) · s / √n): a true difference of that size
                            would have been found four times in five

A case of one worker is on each worker's cores in turn, which may differ in speed. Repeats on the same cores
are a stratum then, if each has two at least: d is the mean over the strata, s their pooled spread, with
n - strata degrees of freedom (Cochran 1977, chapter 5), and p that of t.

Cases without rounds in common are compared by their medians:

    ratio a : b             exp(mean(x_a) - mean(x_b))
    interval of a ratio     exp(difference ± t_df · √(s_a²/n_a + s_b²/n_b))   Welch 1947
    degrees of freedom df   (v_a + v_b)² / (v_a²/(n_a-1) + v_b²/(n_b-1)),  v = s²/n
    p of a ratio            that of t, from three repeats of each on; from five on, where it can be below 1 in
                            100, share of the relabellings whose |difference| is at least the observed one
                            (Fisher 1935; sampled: Phipson and Smyth 2010, arXiv:1603.05766)

Below three repeats a spread is a guess, so there is neither interval nor p, and a sentence says so. Over all
tests of a table, p is adjusted for the share of false discoveries (Benjamini and Hochberg 1995). Where a
table has so many pairs that a permutation of its repeats shows nothing, p is that of t, see
`reports.contrasts`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from statistics import fmean

import numpy as np
from scipy.special import stdtr, stdtrit

from harness.records.comparison import CONFIDENCE, PairedRatios, RepeatedMean, repeated_mean

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
class Mean:
    """Arithmetic mean of the repeats that stored a figure, with their least and greatest."""

    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A ratio of two central figures, with its interval and p, or the reasons why they are missing.

    Attributes:
        p_value: by its test: a permutation where it has one, else t.
        error, freedom: standard deviation of its logarithm, and degrees of freedom of that; None without an
            interval.
        t_p: p by t; it exists whenever the interval does.
        least_p: the smallest p that its test can reach, 0 where there is no limit.
        is_paired: whether it was formed within rounds, see `reports.statistics`.
        least_effect: the smallest ratio above 1 that would most likely have been told from 1.
    """

    value: float
    n: int
    n_baseline: int
    interval: Interval | None
    why_no_interval: str | None
    p_value: float | None
    why_no_p: str | None
    error: float | None = None
    freedom: float | None = None
    t_p: float | None = None
    least_p: float = 0.0
    is_paired: bool = False
    least_effect: float | None = None

    def by_t(self) -> Ratio:
        """The same pair with t for its test."""
        return replace(self, p_value=self.t_p, least_p=0.0)

    def inverse(self) -> Ratio:
        """The same pair the other way around: all of it was formed on logarithms."""
        interval = self.interval and Interval(
            low=_reciprocal(self.interval.high), high=_reciprocal(self.interval.low)
        )
        return replace(
            self, value=_reciprocal(self.value), n=self.n_baseline, n_baseline=self.n, interval=interval
        )


def _reciprocal(value: float) -> float:
    return 1.0 / value if value > 0.0 else math.inf


def interval_of(log: RepeatedMean, *, confidence: float = CONFIDENCE) -> Interval | None:
    """Interval of the figure whose logarithm that is; None where repeats are too few.

    A spread too wide for a float is open at that end.

    Args:
        confidence: coverage of the interval, in (0, 1).
    """
    half = log.half_width(confidence)
    return None if half is None else Interval(low=exp(log.value - half), high=exp(log.value + half))


def exp(log: float) -> float:
    """`math.exp` that answers infinity instead of raising."""
    try:
        return math.exp(log)
    except OverflowError:
        return math.inf


def t_p(log: RepeatedMean) -> float | None:
    """Two-sided p of a logarithm being 0, by Student's t; None where repeats are too few."""
    if log.error is None or log.freedom is None:
        return None
    if log.error == 0.0:
        return 1.0 if log.value == 0.0 else 0.0
    return 2.0 * float(stdtr(log.freedom, -abs(log.value / log.error)))


def mean_of(values: Sequence[float | None]) -> Mean | None:
    """Arithmetic mean and range of the repeats that have the figure; None when none has."""
    present = [float(value) for value in values if value is not None]
    if not present:
        return None
    return Mean(value=fmean(present), low=min(present), high=max(present), n=len(present))


def estimate_of(values: Sequence[float | None]) -> Estimate | None:
    """Geometric mean with interval of the repeats that have a positive figure; None when none has."""
    present = [value for value in values if value is not None and 0 < value < math.inf]
    return estimate(present) if present else None


def estimate(values: Sequence[float]) -> Estimate:
    """Geometric mean of the repeats with a t interval of 95 % on their logarithms.

    Args:
        values: one figure per repeat, each positive and finite.
    Raises:
        StatisticsError: when there is no value, or one is not positive and finite.
    Source:
        Student 1908, "The probable error of a mean".
    """
    log, n = repeated_mean(_logs(values)), len(values)
    interval = interval_of(log)
    why = None if interval else f"n={n}: no interval"
    return Estimate(value=math.exp(log.value), n=n, interval=interval, why_no_interval=why)


def ratio(values: Sequence[float], baseline: Sequence[float], *, confidence: float = CONFIDENCE) -> Ratio:
    """Ratio of two sets of repeats, with Welch's interval and a permutation test.

    Args:
        values: one figure per repeat of the numerator, each positive and finite.
        baseline: the same for the denominator; the lengths may differ.
        confidence: coverage of the interval, in (0, 1).
    Raises:
        StatisticsError: when a side is empty, or a value is not positive and finite.
    Source:
        Welch 1947, "The generalization of Student's problem when several different population variances are
        involved".
    """
    log = repeated_mean(_logs(values)).minus(repeated_mean(_logs(baseline)))
    n_top, n_bottom = len(values), len(baseline)
    counts = f"n={n_top}" if n_top == n_bottom else f"n={n_top} against {n_bottom}"
    interval, p = interval_of(log, confidence=confidence), t_p(log)
    is_permuted = min(n_top, n_bottom) >= MIN_REPEATS_TEST
    return Ratio(
        value=exp(log.value),
        n=n_top,
        n_baseline=n_bottom,
        interval=interval,
        why_no_interval=None if interval else f"{counts}: no interval",
        p_value=permutation_p(values, baseline) if is_permuted else p,
        why_no_p=None if interval else f"{counts}: no test",
        error=log.error,
        freedom=log.freedom,
        t_p=p,
        least_p=_least_permutation_p(n_top, n_bottom) if is_permuted else 0.0,
    )


def _least_permutation_p(n_top: int, n_bottom: int) -> float:
    """The smallest p that permuting labels can reach; sets of one size differ as much when exchanged."""
    n_splits = math.comb(n_top + n_bottom, n_top)
    if n_splits > MAX_EXACT_SPLITS:
        return 1 / (MONTE_CARLO_SPLITS + 1)
    return (2 if n_top == n_bottom else 1) / n_splits


def permutation_p(values: Sequence[float], baseline: Sequence[float]) -> float:
    """Two-sided p of the hypothesis that the labels of the two sets of repeats are interchangeable.

    All splits are counted where there are at most `MAX_EXACT_SPLITS`; otherwise random ones, the same in all
    reports, with the observed split counted among them so that p is never 0.

    Raises:
        StatisticsError: when a side is empty, or a value is not positive and finite.
    Source:
        Phipson and Smyth 2010, "Permutation p-values should never be zero", arXiv:1603.05766.
    """
    top, bottom = np.array(_logs(values)), np.array(_logs(baseline))
    pooled = np.concatenate([top, bottom])
    n_top, n_all = len(top), len(pooled)
    n_splits = math.comb(n_all, n_top)
    exact = n_splits <= MAX_EXACT_SPLITS
    chosen = _all_splits(n_top, n_all) if exact else _drawn_splits(n_top, n_all)
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
def _drawn_splits(n_top: int, n_all: int) -> Chosen:
    """Places of random choices of `n_top` figures out of `n_all`, a line each, the same in each report."""
    rng = np.random.default_rng(0)
    chosen = np.empty((MONTE_CARLO_SPLITS, n_top), dtype=np.int32)
    at_once = max(1, _DRAWN_VALUES // n_all)
    for start in range(0, MONTE_CARLO_SPLITS, at_once):
        piece = chosen[start : start + at_once]
        # The order among the chosen does not matter, so that no line is sorted.
        piece[:] = np.argpartition(rng.random((len(piece), n_all)), n_top, axis=1)[:, :n_top]
    return chosen


def _logs(values: Sequence[float]) -> list[float]:
    if not values:
        raise StatisticsError(
            "statistics: at least one repeat is needed, got none; leave the row without a figure"
        )
    bad = [value for value in values if not (math.isfinite(value) and value > 0)]
    if bad:
        raise StatisticsError(
            f"statistics: figures per repeat must be positive and finite, got {bad[0]!r}; leave it out"
        )
    return [math.log(value) for value in values]


MIN_REPEATS_SIGN_FLIP = 8
POWER = 0.8
"""Share of true differences that are to be found."""
_MAX_EXACT_REPEATS = 14
_DRAWN_SIGNS = 20_000


def paired_ratio(pairs: PairedRatios, *, confidence: float = CONFIDENCE) -> Ratio:
    """Ratio of two cases from the ratios of their repeats.

    Args:
        pairs: at least one, finite.
        confidence: coverage of the interval, in (0, 1).
    """
    n, mean = len(pairs.logs), pairs.mean()
    half = mean.half_width(confidence)
    if half is None or mean.error is None or mean.freedom is None:
        return Ratio(
            value=exp(mean.value),
            n=n,
            n_baseline=n,
            interval=None,
            why_no_interval=f"n={n}: no interval",
            p_value=None,
            why_no_p=f"n={n}: no test",
            is_paired=True,
        )
    by_signs = n >= MIN_REPEATS_SIGN_FLIP and mean.freedom == n - 1
    p = t_p(mean)
    return Ratio(
        value=exp(mean.value),
        n=n,
        n_baseline=n,
        interval=Interval(low=exp(mean.value - half), high=exp(mean.value + half)),
        why_no_interval=None,
        p_value=sign_flip_p(pairs.logs) if by_signs else p,
        why_no_p=None,
        error=mean.error,
        freedom=mean.freedom,
        t_p=p,
        least_p=_least_sign_flip_p(n) if by_signs else 0.0,
        is_paired=True,
        least_effect=exp(half + float(stdtrit(mean.freedom, POWER)) * mean.error),
    )


def _least_sign_flip_p(n: int) -> float:
    """The smallest p that flipping signs can reach: all signs turned differ from 0 by as much."""
    return 2 / (1 << n) if n <= _MAX_EXACT_REPEATS else 1 / (_DRAWN_SIGNS + 1)


def sign_flip_p(differences: Sequence[float]) -> float:
    """Two-sided p of the hypothesis that each difference might as well have had the other sign.

    All signs are counted up to fourteen differences; otherwise random ones, the same in each report, with the
    observed ones counted among them so that p is never 0.

    Source:
        Fisher 1935, "The Design of Experiments", section 21.
    """
    values = np.asarray(differences, dtype=np.float64)
    n = len(values)
    is_exact = n <= _MAX_EXACT_REPEATS
    sums = np.abs(_signs(n) @ values)
    observed = abs(math.fsum(differences))
    slack = 1e-9 * float(np.sum(np.abs(values)))
    extreme = int(np.count_nonzero(sums >= observed - slack))
    return extreme / len(sums) if is_exact else (extreme + 1) / (_DRAWN_SIGNS + 1)


# Signs do not depend on the figures: all pairs of a table have the same.
@lru_cache(maxsize=2)
def _signs(n: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Every choice of n signs, or as many random ones as are drawn, a line each, the same in each report."""
    if n <= _MAX_EXACT_REPEATS:
        choices = (np.arange(1 << n)[:, None] >> np.arange(n)) & 1
    else:
        choices = np.random.default_rng(0).integers(0, 2, size=(_DRAWN_SIGNS, n))
    return (1 - 2 * choices).astype(np.float64)


def adjusted(p_values: Sequence[float]) -> list[float]:
    """Adjust the p of all tests of a table, so that one bound holds for the share of false discoveries.

    Source:
        Benjamini and Hochberg 1995, "Controlling the false discovery rate", JRSS B 57.
    """
    n = len(p_values)
    order = sorted(range(n), key=lambda index: p_values[index], reverse=True)
    result = [1.0] * n
    least = 1.0
    for place, index in enumerate(order):
        least = min(least, p_values[index] * n / (n - place))
        result[index] = least
    return result
