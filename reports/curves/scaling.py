"""Scaling: rates by the number of devices, and what is left of a perfect line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.records.record import Record
from reports.contrasts import rate_ratio
from reports.curves.sources import Source
from reports.rows import Comparison, MarkKind, Row, Scaling, ScalingLine, ScalingPoint
from reports.shapes import BASELINE, circumstances_text, shared_with_single
from reports.statistics import Estimate, Interval


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
    """What sizes of one curve have in common."""
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
    """Whether a row is of one device, whatever shape it stands beside, the baseline once more included."""
    return row.strategy.partition(":")[0].partition(" ")[0] == BASELINE


def _measured(source: Source, row: Row) -> list[_Measured]:
    """The row at the size of its comparison; nothing without a usable rate."""
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
    """The ratio of rates per device; the reference's own is 1 by definition."""
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
