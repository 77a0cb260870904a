"""Estimates, ratios, intervals and p-values of independent repeats.

One *repeat* is a fresh set of processes. Steps within a repeat are correlated, so each repeat counts once,
with its median step time. Times are positive and skewed to the right, so all formulas use logarithms:

    x_i                     log(median of repeat i), n repeats
    estimate                exp(mean(x)), the geometric mean
    interval                exp(mean(x) ± t_{n-1; 0.975} · s / √n)                      Student 1908

**Paired ratios.** Cases that took turns in rounds are compared within each round, because background load
affects both alike:

    d_ir                    log(a) - log(b) in round r of repeat i
    d_i                     mean of d_ir over rounds, trimmed by 20 % at each end       Tukey, McLaughlin 1963
    ratio a : b             exp(mean(d))
    interval                exp(mean(d) ± t_{n-1; 0.975} · s / √n)                      Student 1908
    p                       paired t test, n >= 3; sign-flip permutation test, n >= 8   Fisher 1935
    detectable effect       exp((t_{n-1; 0.975} + t_{n-1; 0.8}) · s / √n), at a power of 0.8

Cases of one worker run on each worker's cores in turn, which may differ in speed. Repeats on the same cores
are then a stratum, if each has at least two: d is the mean over strata, s the pooled standard deviation with
n - strata degrees of freedom (Cochran 1977, chapter 5), and p that of the t test.

**Unpaired ratios.** Cases without common rounds are compared by their medians:

    ratio a : b             exp(mean(x_a) - mean(x_b))
    interval                exp(difference ± t_{df; 0.975} · √(v_a + v_b)), v = s² / n  Welch 1947
    df                      (v_a + v_b)² / (v_a² / (n_a - 1) + v_b² / (n_b - 1))
    p                       Welch's t test, n >= 3 each; permutation test, n >= 5 each  Fisher 1935

With fewer than three repeats there is neither interval nor p. Permutation tests begin where their smallest
possible p is below 0.01; a table with too many pairs for them uses t tests, see `reports.contrasts`. The
p-values of a table are adjusted for the false discovery rate (Benjamini and Hochberg 1995).
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
# Values per block, so that a block stays in the processor's cache.
_DRAWN_VALUES = 500_000


Chosen = np.ndarray[tuple[int, ...], np.dtype[np.int32]]


class StatisticsError(ValueError):
    """Repeats without a valid estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Confidence interval in the figure's unit."""

    low: float
    high: float

    def contains(self, value: float) -> bool:
        """Return True if a value lies within the limits."""
        return self.low <= value <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Geometric mean of n repeats, with its interval or the reason why there is none."""

    value: float
    n: int
    interval: Interval | None
    why_no_interval: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """Arithmetic mean of n repeats, with their minimum and maximum."""

    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Ratio of two cases, with its interval and p-value, or the reasons why they are missing.

    Attributes:
        p_value: p-value of the permutation test if there are enough repeats, else of the t test.
        error, freedom: standard error of its logarithm, and degrees of freedom; None without an interval.
        t_p: p-value of the t test; None without an interval.
        least_p: smallest possible p-value of its test; 0 for the t test.
        is_paired: True if it was computed within rounds, see `reports.statistics`.
        least_effect: detectable effect: smallest ratio above 1 that is significant with a power of 0.8.
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
        """Same ratio with the p-value of the t test."""
        return replace(self, p_value=self.t_p, least_p=0.0)

    def inverse(self) -> Ratio:
        """Inverse ratio; intervals and tests are symmetric because they use logarithms."""
        interval = self.interval and Interval(
            low=_reciprocal(self.interval.high), high=_reciprocal(self.interval.low)
        )
        return replace(
            self, value=_reciprocal(self.value), n=self.n_baseline, n_baseline=self.n, interval=interval
        )


def _reciprocal(value: float) -> float:
    return 1.0 / value if value > 0.0 else math.inf


def interval_of(log: RepeatedMean, *, confidence: float = CONFIDENCE) -> Interval | None:
    """Interval of a figure from its logarithm; None if there are too few repeats.

    Args:
        log: mean of logarithms; a limit too large for a float is infinite.
        confidence: coverage of the interval, in (0, 1).
    """
    half = log.half_width(confidence)
    return None if half is None else Interval(low=exp(log.value - half), high=exp(log.value + half))


def exp(log: float) -> float:
    """`math.exp` that returns infinity instead of raising."""
    try:
        return math.exp(log)
    except OverflowError:
        return math.inf


def t_p(log: RepeatedMean) -> float | None:
    """Two-sided p-value of a t test of a mean logarithm against 0; None if there are too few repeats."""
    if log.error is None or log.freedom is None:
        return None
    if log.error == 0.0:
        return 1.0 if log.value == 0.0 else 0.0
    return 2.0 * float(stdtr(log.freedom, -abs(log.value / log.error)))


def mean_of(values: Sequence[float | None]) -> Mean | None:
    """Arithmetic mean and range of the repeats with a value; None without any."""
    present = [float(value) for value in values if value is not None]
    if not present:
        return None
    return Mean(value=fmean(present), low=min(present), high=max(present), n=len(present))


def estimate_of(values: Sequence[float | None]) -> Estimate | None:
    """Geometric mean and interval of the repeats with a positive value; None without any."""
    present = [value for value in values if value is not None and 0 < value < math.inf]
    return estimate(present) if present else None


def estimate(values: Sequence[float]) -> Estimate:
    """Geometric mean with a 95 % t interval.

    Args:
        values: one value per repeat, positive and finite.
    Raises:
        StatisticsError: without values, or with one that is not positive and finite.
    Source:
        Student 1908, "The probable error of a mean".
    """
    log, n = repeated_mean(_logs(values)), len(values)
    interval = interval_of(log)
    why = None if interval else f"n = {n}: no interval"
    return Estimate(value=math.exp(log.value), n=n, interval=interval, why_no_interval=why)


def ratio(values: Sequence[float], baseline: Sequence[float], *, confidence: float = CONFIDENCE) -> Ratio:
    """Unpaired ratio of two sets of repeats, with Welch's interval.

    Args:
        values: values of the numerator, one per repeat, positive and finite.
        baseline: values of the denominator, one per repeat; the lengths may differ.
        confidence: coverage of the interval, in (0, 1).
    Raises:
        StatisticsError: without values, or with one that is not positive and finite.
    Source:
        Welch 1947, "The generalization of Student's problem when several different population variances are
        involved".
    """
    log = repeated_mean(_logs(values)).minus(repeated_mean(_logs(baseline)))
    n, n_baseline = len(values), len(baseline)
    result = _ratio(log, n, n_baseline, confidence)
    if min(n, n_baseline) < MIN_REPEATS_TEST:
        return result
    least_p = _least_permutation_p(n, n_baseline)
    return replace(result, p_value=permutation_p(values, baseline), least_p=least_p)


def _ratio(log: RepeatedMean, n: int, n_baseline: int, confidence: float) -> Ratio:
    """Ratio with the p-value of the t test."""
    counts = f"n = {n}" if n == n_baseline else f"n = {n} against {n_baseline}"
    interval, p = interval_of(log, confidence=confidence), t_p(log)
    return Ratio(
        value=exp(log.value),
        n=n,
        n_baseline=n_baseline,
        interval=interval,
        why_no_interval=None if interval else f"{counts}: no interval",
        p_value=p,
        why_no_p=None if interval else f"{counts}: no test",
        error=log.error,
        freedom=log.freedom,
        t_p=p,
    )


def _least_permutation_p(n_top: int, n_bottom: int) -> float:
    """Smallest possible p-value; sets of equal size have the same |difference| if they are exchanged."""
    n_splits = math.comb(n_top + n_bottom, n_top)
    if n_splits > MAX_EXACT_SPLITS:
        return 1 / (MONTE_CARLO_SPLITS + 1)
    return (2 if n_top == n_bottom else 1) / n_splits


def permutation_p(values: Sequence[float], baseline: Sequence[float]) -> float:
    """Two-sided p-value of a permutation test of the difference of mean logarithms.

        exact               #{|difference| >= |observed|} / #splits, up to `MAX_EXACT_SPLITS` splits
        Monte Carlo         (#{|difference| >= |observed|} + 1) / (#draws + 1), never 0

    The random splits are the same in all reports.

    Raises:
        StatisticsError: without values, or with one that is not positive and finite.
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
    return _extreme_share(differences, observed, float(np.abs(pooled).max()), is_exact=exact)


def _extreme_share(
    statistics: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    observed: float,
    scale: float,
    *,
    is_exact: bool,
) -> float:
    """Share of permuted statistics at least as large as the observed one, which random draws include.

    Args:
        scale: size of the summed values. Statistics equal to the observed one differ from it by rounding.
    """
    slack = 1e-9 * max(observed, scale, 1e-300)
    n_extreme = int(np.count_nonzero(statistics >= observed - slack))
    return n_extreme / len(statistics) if is_exact else (n_extreme + 1) / (len(statistics) + 1)


# Splits do not depend on the values, so all rows of a report share them.
@lru_cache(maxsize=2)
def _all_splits(n_top: int, n_all: int) -> Chosen:
    """All choices of `n_top` indices out of `n_all`; [n_splits, n_top]."""
    return np.array(list(combinations(range(n_all), n_top)), dtype=np.int32)


@lru_cache(maxsize=2)
def _drawn_splits(n_top: int, n_all: int) -> Chosen:
    """Random choices of `n_top` indices out of `n_all`, the same in all reports; [n_draws, n_top]."""
    rng = np.random.default_rng(0)
    chosen = np.empty((MONTE_CARLO_SPLITS, n_top), dtype=np.int32)
    at_once = max(1, _DRAWN_VALUES // n_all)
    for start in range(0, MONTE_CARLO_SPLITS, at_once):
        piece = chosen[start : start + at_once]
        # The order of chosen indices does not matter, so a partition is enough.
        piece[:] = np.argpartition(rng.random((len(piece), n_all)), n_top, axis=1)[:, :n_top]
    return chosen


def _logs(values: Sequence[float]) -> list[float]:
    if not values:
        raise StatisticsError("statistics: at least one repeat is needed, got none; leave the row empty")
    bad = [value for value in values if not (math.isfinite(value) and value > 0)]
    if bad:
        raise StatisticsError(f"statistics: values must be positive and finite, got {bad[0]!r}; leave it out")
    return [math.log(value) for value in values]


MIN_REPEATS_SIGN_FLIP = 8
POWER = 0.8
"""Power of the detectable effect: probability that a true difference of its size is significant."""
_MAX_EXACT_REPEATS = 14
_DRAWN_SIGNS = 20_000


def paired_ratio(pairs: PairedRatios, *, confidence: float = CONFIDENCE) -> Ratio:
    """Paired ratio of two cases, with a t interval.

    Args:
        pairs: log ratios of at least one repeat, finite.
        confidence: coverage of the interval, in (0, 1).
    """
    n, mean = len(pairs.logs), pairs.mean()
    result = replace(_ratio(mean, n, n, confidence), is_paired=True)
    if mean.error is None or mean.freedom is None:
        return result
    quantiles = stdtrit(mean.freedom, [0.5 + confidence / 2, POWER])
    result = replace(result, least_effect=exp(float(quantiles.sum()) * mean.error))
    if n < MIN_REPEATS_SIGN_FLIP or mean.freedom != n - 1:
        return result
    return replace(result, p_value=sign_flip_p(pairs.logs), least_p=_least_sign_flip_p(n))


def _least_sign_flip_p(n: int) -> float:
    """Smallest possible p-value; flipping all signs gives the same |sum|."""
    return 2 / (1 << n) if n <= _MAX_EXACT_REPEATS else 1 / (_DRAWN_SIGNS + 1)


def sign_flip_p(differences: Sequence[float]) -> float:
    """Two-sided p-value of a sign-flip permutation test of the sum of differences.

        exact               #{|sum| >= |observed|} / 2ⁿ, for n <= 14
        Monte Carlo         (#{|sum| >= |observed|} + 1) / (#draws + 1), never 0

    The random signs are the same in all reports.

    Source:
        Fisher 1935, "The Design of Experiments", section 21.
    """
    values = np.asarray(differences, dtype=np.float64)
    sums, observed = np.abs(_signs(len(values)) @ values), abs(math.fsum(differences))
    return _extreme_share(
        sums, observed, float(np.sum(np.abs(values))), is_exact=len(values) <= _MAX_EXACT_REPEATS
    )


# Signs do not depend on the values, so all pairs of a table share them.
@lru_cache(maxsize=2)
def _signs(n: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """All 2ⁿ choices of n signs, or random ones if n is large; [n_choices, n]."""
    if n <= _MAX_EXACT_REPEATS:
        choices = (np.arange(1 << n)[:, None] >> np.arange(n)) & 1
    else:
        choices = np.random.default_rng(0).integers(0, 2, size=(_DRAWN_SIGNS, n))
    return (1 - 2 * choices).astype(np.float64)


def adjusted(p_values: Sequence[float]) -> list[float]:
    """Benjamini–Hochberg adjusted p-values, which control the false discovery rate of a table.

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
