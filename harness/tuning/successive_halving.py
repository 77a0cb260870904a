"""Successive halving: which candidates are measured next, by what has been measured of them.

In the first rung of a bracket each candidate has one repeat beside the default. The faster half goes on, and
each rung doubles the repeats that its candidates have had. Where none of these is faster than the default,
candidates for which there was no time make another bracket. The best of many is so by luck, too: the last one
left is measured anew, and these repeats alone say whether it is faster. They are as many as time allows, and
nothing is decided before the last.

Source:
    Li et al. 2018, "Hyperband: a novel bandit-based approach to hyperparameter optimization", JMLR 18,
    algorithm 1 with brackets of one size and η = 2; Jamieson and Talwalkar 2016, "Non-stochastic best arm
    identification and hyperparameter optimization", AISTATS.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.records.comparison import MIN_REPEATS_INTERVAL, repeated_mean

LEAST_CONFIRMING = MIN_REPEATS_INTERVAL
MOST_CONFIRMING = 12
_SPARED_CONFIRMING = 4  # for the last candidate, before others are tried
_WITH_DEFAULT = 2  # a candidate and the default beside it


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """Repeats in which candidates are measured beside the default.

    Attributes:
        number: in its bracket, from 0.
        confirms: whether they decide about the one candidate that is left; then as many as time allows, at
            most these.
    """

    names: tuple[str, ...]
    n_repeats: int
    number: int = 0
    confirms: bool = False


def next_rung(
    names: Sequence[str],
    *,
    seed: int,
    made: Sequence[Rung],
    logs: Mapping[str, Sequence[float]],
    n_affordable: int,
) -> Rung | None:
    """The next repeats; None where all is decided, nothing is left, or time is too short.

    Args:
        names: of all candidates.
        seed: of the draw, where time does not allow all.
        made: rungs so far.
        logs: candidate → logarithm of its rate ÷ the default's, one for each repeat; none of what failed.
        n_affordable: repeats that there is time for, the default's counted too.
    """
    if made and made[-1].confirms:
        if all(logs.get(name) for name in made[-1].names):
            return None
        # It failed: those that it was selected from go on without it.
        selecting = [rung for rung in made if not rung.confirms]
        return next_rung(names, seed=seed, made=selecting, logs=logs, n_affordable=n_affordable)
    number, left = (made[-1].number + 1, _best_half(made[-1].names, logs)) if made else (0, ())
    if all(_mean(logs[name]) <= 0 for name in left):
        number, left = 0, _drawn(names, made, seed=seed, n_affordable=n_affordable)
    is_open = len(left) > 1 or (bool(left) and number == 0)
    if is_open and (len(left) + 1) * _n_repeats(number) <= n_affordable:
        return Rung(names=left, n_repeats=_n_repeats(number), number=number)
    # Time does not allow another rung: the best so far is what can still be confirmed.
    left = left[:1]
    if not left or n_affordable < _WITH_DEFAULT:
        return None
    return Rung(names=left, n_repeats=MOST_CONFIRMING, number=number, confirms=True)


def is_faster(logs: Sequence[float]) -> bool:
    """Whether repeats that confirm say more than noise would: their interval of 95 % lies above the default.

    Args:
        logs: logarithms of ratios, one for each repeat.
    """
    mean = repeated_mean(logs) if logs else None
    half = None if mean is None else mean.half_width()
    return mean is not None and half is not None and mean.value - half > 0


def _best_half(names: Sequence[str], logs: Mapping[str, Sequence[float]]) -> tuple[str, ...]:
    measured = [name for name in names if logs.get(name)]
    ranked = sorted(measured, key=lambda name: -_mean(logs[name]))
    return tuple(ranked[: max(1, len(names) // 2)])


def _drawn(names: Sequence[str], made: Sequence[Rung], *, seed: int, n_affordable: int) -> tuple[str, ...]:
    """Of the candidates that were in no rung, as many as there is time for."""
    order = list(names)
    random.Random(seed).shuffle(order)  # noqa: S311 - an order, not a secret
    tried = {name for rung in made for name in rung.names}
    left = [name for name in order if name not in tried]
    return tuple(left[: _n_fitting(len(left), n_affordable)])


def _n_repeats(number: int) -> int:
    """Repeats of a rung, counted from 0: with them its candidates have had 1, 2, 4, …."""
    return 1 << max(0, number - 1)


def _n_fitting(n_candidates: int, n_affordable: int) -> int:
    """The most candidates that can be begun with so that time remains to confirm one of them."""
    if n_affordable < _WITH_DEFAULT:
        return 0
    fitting = (n for n in range(n_candidates, 1, -1) if _n_needed(n) <= n_affordable)
    return next(fitting, min(1, n_candidates))


def _n_needed(n_candidates: int) -> int:
    n, number = _SPARED_CONFIRMING * _WITH_DEFAULT, 0
    while n_candidates > 1 or not number:
        n += (n_candidates + 1) * _n_repeats(number)
        n_candidates, number = n_candidates // 2, number + 1
    return n


def _mean(logs: Sequence[float]) -> float:
    return math.fsum(logs) / len(logs)
