"""Rounds: several cases take short windows in turn, so that whatever a machine does falls on all of them."""

import math
import random
from collections.abc import Iterator, Sequence

LEAD_STEPS = 2
"""Steps at the beginning of a window that are not counted: caches hold what another case left there."""


def lead_steps(period: int) -> int:
    """Steps that lead into a window, whole periods.

    Args:
        period: steps after which what a step does begins anew.
    """
    return math.ceil(LEAD_STEPS / period) * period


def window_steps(step_s: float, *, window_s: float, least: int, period: int = 1) -> int:
    """Counted steps of a window, whole periods.

    Args:
        step_s: of one step, in seconds.
        window_s: how long the window shall be.
        least: steps that it has at any rate.
    """
    wanted = max(least, math.ceil(window_s / step_s) if step_s > 0 else least)
    return math.ceil(wanted / period) * period


def balanced_orders(n_cases: int, seed: str) -> Iterator[Sequence[int]]:
    """Orders in which cases take their windows, one for each round, without end.

    Over as many rounds as there are cases, or twice as many if their number is odd, every case is in each
    place equally often, and comes equally often after each of the others.

    Args:
        n_cases: at least one.
    Source:
        Williams 1949, "Experimental designs balanced for the estimation of residual effects of treatments",
        Australian Journal of Scientific Research A 2.
    """
    draw = random.Random(seed)  # noqa: S311 - an order, not a secret
    while n_cases:
        names = draw.sample(range(n_cases), n_cases)
        zigzag = [-(place // 2) - 1 if place % 2 else place // 2 for place in range(n_cases)]
        square = [[names[(row + step) % n_cases] for step in zigzag] for row in range(n_cases)]
        if n_cases % 2:
            square += [line[::-1] for line in square]
        draw.shuffle(square)
        yield from square
