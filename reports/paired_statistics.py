"""Ratios from repeats whose cases took windows in turn: each gives one ratio, formed within its rounds.

A slow minute falls on both cases of a round alike, and leaves their ratio as it was. So on logarithms:

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

Over all tests of a table, p is adjusted so that of what is called different a twentieth is not (Benjamini and
Hochberg 1995). Where a table has so many pairs that a choice of signs shows nothing, p is that of t, see
`reports.contrasts`.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy.special import stdtrit

from harness.records.comparing.common_rounds import PairedRatios
from harness.records.comparing.student_interval import CONFIDENCE
from reports.statistics import Ratio, exp, interval_of, t_p

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
        interval=interval_of(mean, confidence=confidence),
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
