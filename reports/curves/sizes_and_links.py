"""Curves across comparisons: rates by the number of devices, and by the rate of links."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, permutations

from harness.records.record import Record
from reports.contrasts import Contrasts, rate_ratio
from reports.quantities import link_rate
from reports.recommendation import phrases
from reports.recommendation.candidates import can_win, together
from reports.rows.evidence import MarkKind
from reports.rows.report import (
    Comparison,
    CrossOver,
    LinkLine,
    LinkPoint,
    LinkSensitivity,
    Scaling,
    ScalingLine,
    ScalingPoint,
)
from reports.rows.row import Row
from reports.shapes import BASELINE, ComparedShape, circumstances_text, shape_text, shared_with_single
from reports.statistics import Estimate, Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A comparison, the shape it is of, and how its strategies stand against each other.

    Attributes:
        run_number: place of its run in the report, from 0; copies of a run have one name in several places.
    """

    shape: ComparedShape
    comparison: Comparison
    contrasts: Contrasts
    run_number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """A strategy at one size, with the records behind its row."""

    workers: int
    replicas: int
    row: Row
    rate: Estimate
    records: Sequence[Record]

    @property
    def n_devices(self) -> int:
        return self.workers * self.replicas


def scaling_of(sources: Sequence[Source]) -> tuple[Scaling, ...]:
    """Curves of comparisons that differ in nothing but their size, where there are two sizes at least."""
    groups: dict[tuple[object, ...], list[Source]] = {}
    for source in sources:
        groups.setdefault(_alike(source), []).append(source)
    return tuple(
        scaling for members in groups.values() if (scaling := _scaling(members, sources)) is not None
    )


def _alike(source: Source) -> tuple[object, ...]:
    shape = replace(source.shape, workers=0, replicas=0, batch_size=0)
    return source.run_number, shape, source.comparison.batch_rule, _batch_size(source.comparison)


def _batch_size(comparison: Comparison) -> float | None:
    """Examples that the rule keeps: those of a step, or of each replica in it."""
    if comparison.batch_size is None or comparison.batch_rule != "per-replica":
        return comparison.batch_size
    return comparison.batch_size / (comparison.workers * comparison.replicas)


def _scaling(members: Sequence[Source], sources: Sequence[Source]) -> Scaling | None:
    first = members[0].comparison
    lines: dict[str, list[_Measured]] = {}
    for source in members:
        for row in source.comparison.rows:
            if not is_single(row):
                lines.setdefault(row.strategy, []).extend(_measured(source, row))
    sizes = {(each.workers, each.replicas) for line in lines.values() for each in line}
    if len(sizes) < 2 or first.batch_size is None:
        return None
    single = _single(members[0], [*members, *sources])
    own = [] if single is None else [_line([single], single)]
    return Scaling(
        run=first.run,
        workload=first.workload,
        shape=circumstances_text(replace(members[0].shape, batch_size=0)),
        kind="weak" if first.batch_rule == "per-replica" else "strong",
        batch_size=round(_batch_size(first) or 0) or None,
        lines=(
            *own,
            *(
                _line(line, single or min(line, key=lambda each: each.n_devices))
                for line in lines.values()
                if line
            ),
        ),
    )


def is_single(row: Row) -> bool:
    """True if a row is of one device, also as the baseline's twin, whatever shape it stands beside."""
    return row.strategy.partition(":")[0].partition(" ")[0] == BASELINE


def _measured(source: Source, row: Row) -> list[_Measured]:
    if row.status != "ok" or row.rate is None:
        return []
    size = (1, 1) if is_single(row) else (source.comparison.workers, source.comparison.replicas)
    records = source.contrasts.usable[row.strategy]
    return [_Measured(workers=size[0], replicas=size[1], row=row, rate=row.rate, records=records)]


def _single(beside: Source, sources: Sequence[Source]) -> _Measured | None:
    """`single` on the examples that the batch rule keeps, wherever in the run it stands."""
    wanted = beside.run_number, shared_with_single(beside.shape)
    for source in sources:
        if (source.run_number, shared_with_single(source.shape)) != wanted:
            continue
        for row in source.comparison.rows:
            measured = _measured(source, row) if row.strategy == BASELINE else []
            if measured and measured[0].records[0].batch_size == _batch_size(beside.comparison):
                return measured[0]
    return None


def _line(line: Sequence[_Measured], reference: _Measured) -> ScalingLine:
    ordered = sorted(line, key=lambda each: (each.n_devices, each.workers))
    return ScalingLine(
        strategy=line[0].row.strategy,
        mark=_mark(ordered),
        reference=reference.row.strategy,
        reference_devices=reference.n_devices,
        points=tuple(_point(each, reference) for each in ordered),
    )


def _mark(line: Sequence[_Measured]) -> MarkKind:
    """The mark of a strategy that was checked at each size: the first that keeps it from winning."""
    return next((each.row.mark for each in line if not each.row.mark.proven), line[0].row.mark).kind


def _point(each: _Measured, reference: _Measured) -> ScalingPoint:
    share = reference.n_devices / each.n_devices
    return ScalingPoint(
        workers=each.workers,
        replicas=each.replicas,
        n_devices=each.n_devices,
        rate=each.rate,
        perfect_rate=reference.rate.value / share,
        efficiency=_efficiency(each, reference, share),
    )


def _efficiency(each: _Measured, reference: _Measured, share: float) -> Estimate:
    ratio = None if each is reference else rate_ratio(each.records, reference.records)
    if ratio is None:
        return Estimate(value=1.0, n=each.rate.n, interval=None, why_no_interval="the reference")
    interval = ratio.interval
    return Estimate(
        value=ratio.value * share,
        n=min(ratio.n, ratio.n_baseline),
        interval=None if interval is None else Interval(low=interval.low * share, high=interval.high * share),
        why_no_interval=ratio.why_no_interval,
    )


def link_sensitivity_of(sources: Sequence[Source]) -> tuple[LinkSensitivity, ...]:
    """Curves of comparisons that differ in nothing but the rate of their links, where there are two."""
    groups: dict[tuple[object, ...], list[Source]] = {}
    for source in sources:
        alike = (source.run_number, replace(source.shape, link_mbit=0.0), source.comparison.batch_rule)
        groups.setdefault(alike, []).append(source)
    return tuple(
        _sensitivity(sorted(members, key=_mbit))
        for members in groups.values()
        if sum(any(row.rate for row in member.comparison.rows) for member in members) > 1
    )


def _mbit(source: Source) -> float:
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
    cross_overs = tuple(
        cross_over for slower, faster in pairwise(members) for cross_over in _cross_overs(slower, faster)
    )
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
    n = min(first.n, first.n_baseline, second.n, second.n_baseline)
    return CrossOver(
        slower_mbit=slower_mbit,
        faster_mbit=faster_mbit,
        at_mbit=at_mbit,
        ahead_below=below,
        ahead_above=above,
        n=n,
        is_shown=all(shown),
        sentence=_overtakes(slower_mbit, faster_mbit, at_mbit, below, above, shown, n),
    )


def _overtakes(
    slower_mbit: float,
    faster_mbit: float | None,
    at_mbit: float | None,
    below: str,
    above: str,
    shown: tuple[bool, bool],
    n: int,
) -> str:
    low, high = link_rate(slower_mbit), link_rate(faster_mbit)
    if at_mbit is None:
        where, name, other = phrases.SOMEWHERE_ABOVE.format(rate=low), above, below
    else:
        where, name, other = phrases.BELOW.format(rate=link_rate(at_mbit, significant=2)), below, above
    ends = [end for end, is_shown in zip((low, high), shown, strict=True) if not is_shown]
    phrase = phrases.MAY_OVERTAKE if ends else phrases.OVERTAKES
    return phrase.format(
        slower=where, name=name, other=other, ends=" and ".join(ends), low=low, high=high, n=n
    )


def sentences_of(members: Sequence[Source], cross_overs: Sequence[CrossOver]) -> tuple[str, ...]:
    """Sentences on where the best changes, where that is unknown, or that it does not change.

    Args:
        members: comparisons by the rate of their links, two at least, slowest first.
        cross_overs: between neighbours of them.
    """
    unknown = [text for slower, faster in pairwise(members) if (text := _why_unknown(slower, faster))]
    sentences = [*(cross_over.sentence for cross_over in cross_overs), *unknown]
    if not sentences:
        return (_none_overtakes(members),)
    if not cross_overs and len(unknown) < len(members) - 1:
        sentences.append(phrases.NONE_OVERTAKES_ELSEWHERE)
    return tuple(sentences)


def _why_unknown(slower: Source, faster: Source) -> str:
    low, high = (link_rate(each.comparison.link_requested_mbit) for each in (slower, faster))
    at_low, at_high = ([row.strategy for row in _candidates(each)] for each in (slower, faster))
    both = [name for name in at_low if name in at_high]
    if not both:
        return phrases.UNKNOWN_WITH_NONE.format(low=low, high=high)
    if len(both) == 1:
        return phrases.UNKNOWN_WITH_ONE.format(low=low, high=high, name=both[0])
    for best, here, there in ((at_low[0], low, high), (at_high[0], high, low)):
        if best not in both:
            return phrases.UNKNOWN_WITHOUT_BEST.format(low=low, high=high, best=best, here=here, there=there)
    return ""


def _none_overtakes(members: Sequence[Source]) -> str:
    """The best stays: with certainty only where repeats distinguish it from all others at every rate."""
    candidates = [(_candidates(member), member) for member in members]
    bests = {rows[0].strategy for rows, _ in candidates}
    best = bests.pop() if len(bests) == 1 else "the best"
    ends = [
        link_rate(source.comparison.link_requested_mbit)
        for rows, source in candidates
        if any(together(rows[0], row, source.contrasts) for row in rows[1:])
    ]
    phrase = phrases.NONE_OVERTAKES_PERHAPS if ends else phrases.NONE_OVERTAKES
    return phrase.format(best=best, ends=" and ".join(ends))


def _candidates(source: Source) -> list[Row]:
    return [row for row in source.comparison.rows if can_win(row)]
