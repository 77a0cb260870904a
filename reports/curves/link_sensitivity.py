"""Link sensitivity: rates by the rate of links, and where one strategy overtakes another."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, permutations

from reports.curves.best_by_link import sentences_of
from reports.curves.sources import Source
from reports.quantities import link_rate
from reports.recommendation.candidates import can_win
from reports.rows import CrossOver, LinkLine, LinkPoint, LinkSensitivity, Row
from reports.shapes import shape_text


def link_sensitivity_of(sources: Sequence[Source]) -> tuple[LinkSensitivity, ...]:
    """Curves of comparisons that differ in nothing but the rate of their links, where there are two."""
    groups: dict[tuple[object, ...], list[Source]] = {}
    for source in sources:
        alike = (source.run_number, replace(source.shape, link_mbit=0.0), source.comparison.batch_rule)
        groups.setdefault(alike, []).append(source)
    return tuple(
        _sensitivity(sorted(members, key=_mbit))
        for members in groups.values()
        if sum(any(row.rate for row in each.comparison.rows) for each in members) > 1
    )


def _mbit(source: Source) -> float:
    """Links without a limit are the fastest."""
    return source.comparison.link_requested_mbit or math.inf


def _sensitivity(members: Sequence[Source]) -> LinkSensitivity:
    first = members[0]
    lines: dict[str, list[tuple[Row, LinkPoint]]] = {}
    for source in members:
        for row in source.comparison.rows:
            if row.status == "ok" and row.rate is not None and row.mark.kind != "twin":
                point = LinkPoint(
                    requested_mbit=source.comparison.link_requested_mbit,
                    measured_mbit=source.comparison.link_measured_mbit,
                    rate=row.rate,
                )
                lines.setdefault(row.strategy, []).append((row, point))
    cross_overs = tuple(each for slower, faster in pairwise(members) for each in _cross_overs(slower, faster))
    return LinkSensitivity(
        run=first.comparison.run,
        workload=first.comparison.workload,
        shape=shape_text(replace(first.shape, link_mbit=0.0)),
        lines=tuple(
            LinkLine(
                strategy=name,
                mark=next((row.mark for row, _ in line if not row.mark.proven), line[0][0].mark).kind,
                can_win=all(can_win(row) for row, _ in line),
                points=tuple(point for _, point in line),
            )
            for name, line in lines.items()
        ),
        cross_overs=cross_overs,
        sentences=sentences_of(members, cross_overs),
    )


def _cross_overs(slower: Source, faster: Source) -> Iterator[CrossOver]:
    """Pairs that change places between two rates, if one of them is the best of all at either."""
    names, others = (
        [row.strategy for row in source.comparison.rows if can_win(row)] for source in (slower, faster)
    )
    both = [name for name in names if name in others]
    # Rows are in falling order of standing.
    best = {names[0], others[0]} if both else set()
    for below, above in permutations(both, 2):
        if best & {below, above} and (crossing := _cross_over(slower, faster, below, above)):
            yield crossing


def _cross_over(slower: Source, faster: Source, below: str, above: str) -> CrossOver | None:
    """Where `above` overtakes `below`; None if it does not."""
    first, second = (source.contrasts.of(below, above) for source in (slower, faster))
    if first is None or second is None or not math.inf > first.value > 1.0 > second.value > 0.0:
        return None
    slower_mbit, faster_mbit = slower.comparison.link_requested_mbit, faster.comparison.link_requested_mbit
    # Sorted, with no limit last, and of one rate there is one.
    assert slower_mbit is not None
    at_mbit = None
    if faster_mbit is not None:
        share = math.log(first.value) / (math.log(first.value) - math.log(second.value))
        at_mbit = slower_mbit * (faster_mbit / slower_mbit) ** share
    shown = slower.contrasts.ahead(below, above), faster.contrasts.ahead(above, below)
    crossing = CrossOver(
        slower_mbit=slower_mbit,
        faster_mbit=faster_mbit,
        at_mbit=at_mbit,
        ahead_below=below,
        ahead_above=above,
        n=min(first.n, first.n_baseline, second.n, second.n_baseline),
        is_shown=all(shown),
        sentence="",
    )
    return replace(crossing, sentence=_sentence(crossing, shown))


def _sentence(crossing: CrossOver, shown: tuple[bool, bool]) -> str:
    """Where the best changes in words, with certainty only if the repeats show both ends."""
    low, high = link_rate(crossing.slower_mbit), link_rate(crossing.faster_mbit)
    where = (
        f"above {low}"
        if crossing.at_mbit is None
        else f"below about {link_rate(crossing.at_mbit, significant=2)}"
    )
    if crossing.at_mbit is None:
        change = f"somewhere {where} {crossing.ahead_above} overtakes {crossing.ahead_below}"
    else:
        change = f"{where} {crossing.ahead_below} overtakes {crossing.ahead_above}"
    measured = f"measured at {low} and {high}, n={crossing.n}"
    if all(shown):
        return f"{change[0].upper()}{change[1:]} ({measured})."
    ends = [end for end, is_shown in zip((low, high), shown, strict=True) if not is_shown]
    return f"Perhaps {change}: at {' and '.join(ends)} these repeats cannot tell them apart ({measured})."
