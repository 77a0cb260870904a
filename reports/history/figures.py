"""Figures of a night: what its run says of each case, one number a metric, with the error of its repeats."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from harness.records.comparing.comparison_key import comparison_key
from harness.records.comparing.student_interval import RepeatedMean, repeated_mean
from harness.records.record import Record
from reports.changes.standings import Standing, standings
from reports.load import Run
from reports.shapes import shape_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """What is followed from night to night.

    Attributes:
        more_is_better: whether a larger figure is a better one.
        least_effect: change of the logarithm below which it does not matter.
    """

    name: str
    more_is_better: bool
    least_effect: float


RATIO = Metric(name="ratio", more_is_better=True, least_effect=0.035)
RATE = Metric(name="rate", more_is_better=True, least_effect=0.035)
_OF_RECORDS = {
    Metric(name="payload_bytes", more_is_better=False, least_effect=0.01): "payload_bytes_per_step",
    Metric(name="tcp_bytes", more_is_better=False, least_effect=0.05): "tcp_bytes_per_step",
}
MEMORY = Metric(name="peak_rss_bytes", more_is_better=False, least_effect=0.05)
SECONDS = Metric(name="seconds", more_is_better=False, least_effect=0.05)
METRICS = {metric.name: metric for metric in (RATIO, RATE, *_OF_RECORDS, MEMORY, SECONDS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a series is of. Two nights with the same subject are of one series.

    Attributes:
        case: the case's id. comparison_key: of circumstances, the machine among them.
        lock_hash: of the versions of all packages, where it is known.
        against: the baseline of a ratio, otherwise empty.
    """

    case: str
    workload: str
    shape: str
    strategy: str
    comparison_key: str
    lock_hash: str
    metric: str
    against: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number of a night.

    Attributes:
        value: positive and finite.
        error: standard error of its logarithm by n repeats, None for too few of them.
    """

    subject: Subject
    value: float
    error: float | None
    n: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and self.value > 0):
            raise ValueError(
                f"{self.subject.metric} must be positive and finite, got {self.value}; leave it out"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A case without a figure in a night, and why."""

    case: str
    workload: str
    shape: str
    strategy: str
    status: str
    message: str


def figures_of(run: Run) -> tuple[tuple[Figure, ...], tuple[Lost, ...]]:
    """All that a run has to say, and the cases of which it says nothing."""
    figures: list[Figure] = []
    lost: list[Lost] = []
    for standing in standings(run).values():
        if standing.usable:
            figures += _figures(standing)
        else:
            lost.append(_lost(standing))
    return tuple(figures), tuple(lost)


def _figures(standing: Standing) -> Iterator[Figure]:
    rate = repeated_mean([math.log(rate) for rate in standing.rates])
    yield _figure(standing, RATE, rate, len(standing.rates))
    if standing.against.logs:
        against = standing.against
        yield _figure(standing, RATIO, against.mean(), len(against.logs), against=standing.baseline or "")
    for metric, field in _OF_RECORDS.items():
        yield from _of_records(standing, metric, [getattr(record, field) for record in standing.usable])
    yield from _of_records(standing, MEMORY, [_most_memory(record) for record in standing.usable])


def _of_records(standing: Standing, metric: Metric, values: Sequence[float | None]) -> Iterator[Figure]:
    present = [value for value in values if value is not None and value > 0]
    if present:
        yield _figure(standing, metric, RepeatedMean(value=math.log(fmean(present))), len(present))


def _figure(standing: Standing, metric: Metric, log: RepeatedMean, n: int, *, against: str = "") -> Figure:
    record = standing.usable[0]
    subject = Subject(
        case=record.case,
        workload=standing.shape.workload,
        shape=shape_text(standing.shape),
        strategy=standing.strategy,
        comparison_key=comparison_key(record),
        lock_hash=(record.provenance.lock_hash if record.provenance else None) or "",
        metric=metric.name,
        against=against,
    )
    return Figure(subject=subject, value=math.exp(log.value), error=log.error, n=n)


def _most_memory(record: Record) -> float | None:
    return max((each for each in record.peak_rss_bytes or () if each is not None), default=None)


def _lost(standing: Standing) -> Lost:
    last = standing.records[-1]
    return Lost(
        case=last.case,
        workload=standing.shape.workload,
        shape=shape_text(standing.shape),
        strategy=standing.strategy,
        status=last.status,
        message=f"{last.error.type}: {last.error.message}"
        if last.error
        else last.plausibility or last.status,
    )
