"""Ties: why strategies rank together although an interval excludes 1, and how many repeats may decide."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy.special import stdtrit

from reports.contrasts import SIGNIFICANCE, Contrasts
from reports.quantities import digits
from reports.recommendation.phrases import rate_phrase
from reports.rows import Row
from reports.statistics import POWER, Ratio

_MOST_REPEATS = 100
"""Beyond that nobody would wait: the difference is named as too small instead."""


def tie_sentences(level: Sequence[Row], contrasts: Contrasts) -> tuple[str, ...]:
    """How far apart strategies are that rank together, why that is not enough, and what would be.

    Args:
        level: at least two, in falling order of standing.
    """
    leader, last = level[0].strategy, level[-1].strategy
    gap = contrasts.of(leader, last)
    sentences = []
    if gap is not None:
        phrase = f"{leader} runs at {rate_phrase(gap, last)}{why_together(leader, last, contrasts)}"
        sentences.append(
            f"From the highest figure to the lowest of them: {phrase}{_way_out(gap, contrasts)}."
        )
    for row in level[1:-1]:
        lead, why = contrasts.of(leader, row.strategy), why_together(leader, row.strategy, contrasts)
        if lead is not None and why:
            sentences.append(f"{leader} runs at {rate_phrase(lead, row.strategy)}{why}.")
    return tuple(sentences)


def why_together(first: str, second: str, contrasts: Contrasts) -> str:
    """Why two rank together although the interval of their ratio excludes 1; nothing where it does not."""
    lead, p = contrasts.of(first, second), contrasts.p_of(first, second)
    if lead is None or lead.interval is None or lead.interval.contains(1.0):
        return ""
    if lead.p_value is None or p is None or p <= SIGNIFICANCE:
        return ""
    corrected = f"corrected for the {contrasts.n_tests} pairs of this table p={_p(p)}"
    if lead.p_value > SIGNIFICANCE:
        alone = f"by its test these two do not differ (p={_p(lead.p_value)})"
        return f"; {alone}" if contrasts.n_tests == 1 else f"; {alone}, {corrected}"
    return f"; alone these two would differ (p={_p(lead.p_value)}), {corrected}"


def enough_repeats(figure: Ratio, *, n_tests: int = 1) -> int | None:
    """Repeats that tell a difference as large as this one from none, four times in five.

    It is a plain estimate: it takes the spread and the difference of these repeats for the true ones, and p
    to be corrected for all tests of the table at once (Bonferroni), which is never less than what is done.

    Returns:
        More than there are; None where they are too many to wait for, or nothing is known of the spread.
    """
    if figure.error is None or figure.freedom is None or not 0.0 < figure.value < math.inf:
        return None
    n = min(figure.n, figure.n_baseline)
    apart = abs(math.log(figure.value))
    if apart == 0.0:
        return None
    for more in range(n + 1, _MOST_REPEATS + 1):
        freedom = figure.freedom * (more - 1) / (n - 1)
        needed = stdtrit(freedom, 1 - SIGNIFICANCE / n_tests / 2) + stdtrit(freedom, POWER)
        if float(needed) * figure.error * math.sqrt(n / more) <= apart:
            return more
    return None


def _way_out(gap: Ratio, contrasts: Contrasts) -> str:
    if gap.interval is None:
        return ""
    enough = enough_repeats(gap, n_tests=contrasts.n_tests)
    if enough is None:
        return f"; so small a difference would take more than {_MOST_REPEATS} repeats, by a rough estimate"
    return f"; about {enough} repeats would likely tell them apart, by a rough estimate"


def _p(value: float) -> str:
    return digits(value, significant=2)
