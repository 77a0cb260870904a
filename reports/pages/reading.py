"""How to read intervals, p and shared ranks: paragraphs with the numbers by which they are really made."""

from __future__ import annotations

from harness.records.comparing.common_rounds import TRIMMED_SHARE
from harness.records.comparing.student_interval import (
    CONFIDENCE,
    MIN_REPEATS_INTERVAL,
    SEQUENTIAL_CONFIDENCE,
)
from reports.contrasts import SIGNIFICANCE
from reports.paired_statistics import MIN_REPEATS_SIGN_FLIP
from reports.statistics import MIN_REPEATS_TEST

_CONFIDENCE = f"{100 * CONFIDENCE:.0f} %"
_INTERVAL = (
    "Of a rate: Student's t on logarithms of the repeats' medians. Of a ratio: in each round the two cases' "
    "windows give one ratio, a repeat's is the mean of their logarithms without the highest and the lowest "
    f"{100 * TRIMMED_SHARE:.0f} %, and the interval is that of a paired t over repeats. Where repeats went "
    f"on until it was narrow, it is formed at {100 * SEQUENTIAL_CONFIDENCE:.0f} %, since one that is looked "
    f"at so often covers {_CONFIDENCE} then. Cases without rounds in common are compared by Welch's t. Below "
    f"{MIN_REPEATS_INTERVAL} repeats there is none, and the report says so."
)
_P = (
    f"Within rounds that of t, and from {MIN_REPEATS_SIGN_FLIP} repeats on that of a permutation of signs, "
    "unless a case of one worker was on several workers' cores in turn. Without rounds in common that of "
    f"Welch's t, and from {MIN_REPEATS_TEST} repeats of each on that of a permutation of labels. Where a "
    "table has so many pairs that the smallest p of a permutation could not count, that of t is taken."
)
_TOGETHER = (
    "Strategies share a rank when the interval of their ratio contains 1, or its p, adjusted over all pairs "
    f"of the table (Benjamini and Hochberg), is above {SIGNIFICANCE:g}. A lone leader is named only when "
    f"neither holds for any other, and each has at least {MIN_REPEATS_INTERVAL} repeats. What is cheapest is "
    "held to the same, with rates divided by prices."
)


def reading_of_statistics() -> tuple[tuple[str, str], ...]:
    """Names and what each means."""
    return ((f"{_CONFIDENCE} interval", _INTERVAL), ("p", _P), ("Ranking together", _TOGETHER))
