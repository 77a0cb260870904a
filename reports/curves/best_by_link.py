"""Whether the best strategy changes with the rate of links, in sentences, or why that cannot be said."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from reports.curves.sources import Source
from reports.quantities import link_rate
from reports.recommendation.candidates import can_win, together
from reports.rows import CrossOver, Row

_FEWEST = 2
"""Strategies that have to be judged at both of two rates before one can be said to overtake another."""


def sentences_of(members: Sequence[Source], cross_overs: Sequence[CrossOver]) -> tuple[str, ...]:
    """Where the best changes; between which rates that is not known; that it does not, where all is judged.

    Args:
        members: comparisons by the rate of their links, two at least, slowest first.
        cross_overs: between neighbours of them.
    """
    unknown = [why for slower, faster in pairwise(members) if (why := _why_unknown(slower, faster))]
    sentences = [*(each.sentence for each in cross_overs), *unknown]
    if not sentences:
        return (_none_overtakes(members),)
    if not cross_overs and len(unknown) < len(members) - 1:
        sentences.append("Between the other rates no strategy overtakes the best by its figures.")
    return tuple(sentences)


def _why_unknown(slower: Source, faster: Source) -> str:
    """Why nothing can be said between two rates; empty where their candidates can be compared."""
    low, high = (link_rate(each.comparison.link_requested_mbit) for each in (slower, faster))
    at_low, at_high = ([row.strategy for row in _candidates(each)] for each in (slower, faster))
    both = [name for name in at_low if name in at_high]
    start = f"Between {low} and {high} it cannot be said whether the best changes"
    if len(both) < _FEWEST:
        who = f"only {both[0]} was" if both else "no strategy was"
        return (
            f"{start}: {who} measured and shown to compute the right thing at both, and it takes {_FEWEST}."
        )
    for best, here, there in ((at_low[0], low, high), (at_high[0], high, low)):
        if best not in both:
            return (
                f"{start}: {best}, the best at {here}, was not measured and shown to compute the right thing "
                f"at {there}."
            )
    return ""


def _none_overtakes(members: Sequence[Source]) -> str:
    """That the best stays, with certainty only where repeats tell it from all others at every rate."""
    candidates = [(_candidates(each), each) for each in members]
    bests = {rows[0].strategy for rows, _ in candidates}
    best = bests.pop() if len(bests) == 1 else "the best"
    level = [
        link_rate(source.comparison.link_requested_mbit)
        for rows, source in candidates
        if any(together(rows[0], row, source.contrasts) for row in rows[1:])
    ]
    said = f"o strategy overtakes {best} between the rates that were measured"
    if not level:
        return f"N{said}."
    at = " and ".join(level)
    return f"By their figures n{said}, but at {at} these repeats cannot tell it from all others."


def _candidates(source: Source) -> list[Row]:
    """Rows that may win, in falling order of standing."""
    return [row for row in source.comparison.rows if can_win(row)]
