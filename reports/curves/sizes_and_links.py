"""Curves across comparisons: throughput by number of devices, and by link rate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise, permutations

from harness.records.record import Record
from reports.contrasts import Contrasts, rate_ratio
from reports.quantities import link_rate
from reports.recommendation import phrases
from reports.recommendation.candidates import can_win, together
from reports.rows.parts import MarkKind
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
    """A comparison with its shape and the contrasts between its strategies.

    Attributes:
        run_number: index of its run in the report; copies of a run share their name.
    """

    shape: ComparedShape
    comparison: Comparison
    contrasts: Contrasts
    run_number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """A strategy at one size, with its records."""

    workers: int
    replicas: int
    row: Row
    rate: Estimate
    records: Sequence[Record]

    @property
    def n_devices(self) -> int:
        return self.workers * self.replicas


def scaling_of(sources: Sequence[Source]) -> tuple[Scaling, ...]:
    """Scaling curves of comparisons that differ only in their size, with at least two sizes."""
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
    """Batch size that the batch rule keeps constant: examples per step, or per replica."""
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
    sizes = {(point.workers, point.replicas) for line in lines.values() for point in line}
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
                _line(line, single or min(line, key=lambda point: point.n_devices))
                for line in lines.values()
                if line
            ),
        ),
        fastest=_fastest([source.comparison for source in members]),
    )


_MOST_LEADERS = 3


def _fastest(comparisons: Sequence[Comparison]) -> str:
    """Winners by size, as in `fastest: ps with 2 workers, sharded-update with 4 and 8`."""
    by_size = sorted(comparisons, key=lambda one: (one.workers * one.replicas, one.workers))
    has_replicas = any(one.replicas > 1 for one in comparisons)
    unit = "workers × replicas" if has_replicas else "workers"
    parts: list[str] = []
    for leaders, group in groupby(by_size, key=lambda one: frozenset(one.verdict.leaders)):
        if not leaders:
            continue
        names = " or ".join(sorted(leaders)) if len(leaders) <= _MOST_LEADERS else f"a tie of {len(leaders)}"
        sizes = [f"{one.workers}×{one.replicas}" if has_replicas else f"{one.workers}" for one in group]
        counts = " and ".join(filter(None, (", ".join(sizes[:-1]), sizes[-1])))
        counted = f"{counts} {unit}" if counts != "1" else "1 worker"
        parts.append(f"{names} with {counts if parts else counted}")
    return f"fastest: {', '.join(parts)}" if parts else ""


def is_single(row: Row) -> bool:
    """True for `single` and its A/A copy, which appear in several shapes."""
    return row.strategy.partition(":")[0].partition(" ")[0] == BASELINE


def _measured(source: Source, row: Row) -> list[_Measured]:
    if row.status != "ok" or row.rate is None:
        return []
    size = (1, 1) if is_single(row) else (source.comparison.workers, source.comparison.replicas)
    records = source.contrasts.usable[row.strategy]
    return [_Measured(workers=size[0], replicas=size[1], row=row, rate=row.rate, records=records)]


def _single(beside: Source, sources: Sequence[Source]) -> _Measured | None:
    """`single` with the batch size that the batch rule keeps constant, in any comparison of the run."""
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
    ordered = sorted(line, key=lambda point: (point.n_devices, point.workers))
    return ScalingLine(
        strategy=line[0].row.strategy,
        mark=_mark(ordered),
        reference=reference.row.strategy,
        reference_devices=reference.n_devices,
        points=tuple(_point(point, reference) for point in ordered),
    )


def _mark(line: Sequence[_Measured]) -> MarkKind:
    """Mark of a strategy at all sizes: the first one that excludes it from winning, if any."""
    return next((point.row.mark for point in line if not point.row.mark.proven), line[0].row.mark).kind


def _point(point: _Measured, reference: _Measured) -> ScalingPoint:
    share = reference.n_devices / point.n_devices
    return ScalingPoint(
        workers=point.workers,
        replicas=point.replicas,
        n_devices=point.n_devices,
        rate=point.rate,
        perfect_rate=reference.rate.value / share,
        efficiency=_efficiency(point, reference, share),
    )


def _efficiency(point: _Measured, reference: _Measured, share: float) -> Estimate:
    ratio = None if point is reference else rate_ratio(point.records, reference.records)
    if ratio is None:
        return Estimate(value=1.0, n=point.rate.n, interval=None, why_no_interval="the reference")
    interval = ratio.interval
    return Estimate(
        value=ratio.value * share,
        n=min(ratio.n, ratio.n_baseline),
        interval=None if interval is None else Interval(low=interval.low * share, high=interval.high * share),
        why_no_interval=ratio.why_no_interval,
    )


def link_sensitivity_of(sources: Sequence[Source]) -> tuple[LinkSensitivity, ...]:
    """Curves of comparisons that differ only in their link rate, with at least two rates."""
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
    """Crossovers between two link rates that involve the best strategy at either rate."""
    names, others = (
        [row.strategy for row in source.comparison.rows if can_win(row)] for source in (slower, faster)
    )
    both = [name for name in names if name in others]
    # Rows are sorted from fastest to slowest.
    best = {names[0], others[0]} if both else set()
    for below, above in permutations(both, 2):
        if best & {below, above} and (crossing := _cross_over(slower, faster, below, above)):
            yield crossing


def _cross_over(slower: Source, faster: Source, below: str, above: str) -> CrossOver | None:
    first, second = (source.contrasts.of(below, above) for source in (slower, faster))
    if first is None or second is None or not math.inf > first.value > 1.0 > second.value > 0.0:
        return None
    slower_mbit, faster_mbit = slower.comparison.link_requested_mbit, faster.comparison.link_requested_mbit
    # Rates are sorted and distinct, with no limit last.
    assert slower_mbit is not None
    at_mbit = None
    if faster_mbit is not None:
        share = math.log(first.value) / (math.log(first.value) - math.log(second.value))
        at_mbit = slower_mbit * (faster_mbit / slower_mbit) ** share
    low, high = link_rate(slower_mbit), link_rate(faster_mbit)
    is_ahead = {low: slower.contrasts.ahead(below, above), high: faster.contrasts.ahead(above, below)}
    ends = [rate for rate, is_significant in is_ahead.items() if not is_significant]
    if at_mbit is None:
        where, name, other = phrases.SOMEWHERE_ABOVE.format(rate=low), above, below
    else:
        where, name, other = phrases.BELOW.format(rate=link_rate(at_mbit, significant=2)), below, above
    n = min(first.n, first.n_baseline, second.n, second.n_baseline)
    return CrossOver(
        slower_mbit=slower_mbit,
        faster_mbit=faster_mbit,
        at_mbit=at_mbit,
        ahead_below=below,
        ahead_above=above,
        n=n,
        is_shown=not ends,
        sentence=(phrases.MAY_OVERTAKE if ends else phrases.OVERTAKES).format(
            slower=where, name=name, other=other, ends=" and ".join(ends), low=low, high=high, n=n
        ),
    )


def sentences_of(members: Sequence[Source], cross_overs: Sequence[CrossOver]) -> tuple[str, ...]:
    """Sentences on crossovers, on ranges where they are unknown, or on their absence.

    Args:
        members: at least two comparisons by link rate, slowest first.
        cross_overs: crossovers between neighbouring rates.
    """
    unknown = [text for slower, faster in pairwise(members) if (text := _why_unknown(slower, faster))]
    sentences = [*(cross_over.sentence for cross_over in cross_overs), *unknown]
    if not sentences:
        return (_none_overtakes(members),)
    if not cross_overs and len(unknown) < len(members) - 1:
        sentences.append(phrases.NONE_OVERTAKES_ELSEWHERE)
    return tuple(sentences)


def _why_unknown(slower: Source, faster: Source) -> str:
    low, high = (link_rate(source.comparison.link_requested_mbit) for source in (slower, faster))
    at_low, at_high = ([row.strategy for row in _candidates(source)] for source in (slower, faster))
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
    """Sentence for no crossover; certain only if the best is significantly faster at every rate."""
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
