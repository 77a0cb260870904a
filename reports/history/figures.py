"""Figures of a night: one number a metric for each case, its error, and the cases that have none, and why."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from harness.records.comparison import RepeatedMean, comparison_key, repeated_mean
from harness.records.conditions import Repository
from harness.records.outcome import Equivalence
from harness.records.record import Record
from reports.changes.standings import LAYERS, Standing, standings
from reports.history.database import HistoryError, NothingUsableError
from reports.load import Run, load
from reports.shapes import shape_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A figure that is followed from night to night.

    Attributes:
        more_is_better: whether a larger figure is a better one.
        least_effect: change of the logarithm below which it does not matter.
        usual_noise: standard deviation of a night's logarithm, before many nights are known.
    """

    name: str
    more_is_better: bool
    least_effect: float
    usual_noise: float


RATIO = Metric(name="ratio", more_is_better=True, least_effect=0.035, usual_noise=0.02)
RATE = Metric(name="rate", more_is_better=True, least_effect=0.035, usual_noise=0.02)
_OF_RECORDS = {
    Metric(
        name=layer.metric,
        more_is_better=False,
        least_effect=layer.least_effect,
        usual_noise=layer.usual_noise,
    ): figure
    for layer, figure in LAYERS.items()
}
MEMORY = Metric(name="peak_rss_bytes", more_is_better=False, least_effect=0.05, usual_noise=0.01)
SECONDS = Metric(name="seconds", more_is_better=False, least_effect=0.05, usual_noise=0.02)
METRICS = {metric.name: metric for metric in (RATIO, RATE, *_OF_RECORDS, MEMORY, SECONDS)}
BENCHMARKS = "pytest-benchmark"
"""Experiment of every night that a file of pytest-benchmark becomes."""
NOT_EQUIVALENT, BEYOND_BOUND, BROKEN_BY_FAULT = "not-equivalent", "beyond-bound", "broken-by-fault"
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
"""A commit's name in full, by either of git's hashes."""
_FAILED_CHECKS = {
    NOT_EQUIVALENT: "it does not compute what one device computes",
    BEYOND_BOUND: "it loses more than its compressors state",
}
"""Status of a case that failed its check → what that means."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Subject of a series: nights with the same subject are of one series.

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

    @property
    def test_file(self) -> str:
        return self.case.partition("::")[0]


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
    """A case without a figure in a night, and why.

    Attributes:
        status: of a repeat that failed, else of its last; `not-equivalent` or `beyond-bound` where it failed
            its check, `broken-by-fault` where a fault of the experiment had it fail.
    """

    case: str
    workload: str
    shape: str
    strategy: str
    status: str
    message: str

    @property
    def is_wrong(self) -> bool:
        return self.status in _FAILED_CHECKS


@dataclass(frozen=True, slots=True, kw_only=True)
class NewNight:
    """A night before it is in a history.

    Attributes:
        run: its id; a history has one night of it.
        is_damaged: whether something of its run folder is damaged or gone.
    """

    figures: Sequence[Figure]
    lost: Sequence[Lost]
    started_utc: str
    experiment: str
    run: str
    run_dir: str
    git_sha: str | None = None
    git_dirty: bool | None = None
    workload_commits: Mapping[str, Repository] = field(default_factory=dict)
    is_damaged: bool = False


def run_night(folder: Path, *, tell: Callable[[str], None]) -> NewNight:
    """Read a run folder as a night that can be written.

    Args:
        tell: takes a line on what of the folder could not be used.
    Raises:
        harness.errors.StoreError: it is no run folder. HistoryError: nobody knows of which night it is.
        NothingUsableError: none of its records can be read.
    """
    run = load(folder)
    if not run.records and run.left_out:
        first = run.left_out[0]
        raise NothingUsableError(f"{folder} has no record that can be read: {first.where}: {first.why}")
    if not run.stored.created_utc:
        raise HistoryError(f"{folder} must say when its run began, got nothing; its run.json is damaged")
    for item in run.left_out:
        tell(f"left out: {folder}: {item.where}: {item.why}")
    figures, lost = figures_of(run)
    provenance = next((record.provenance for record in run.records if record.provenance), None)
    git_sha = provenance.git_sha if provenance else None
    return NewNight(
        figures=figures,
        lost=lost,
        started_utc=run.stored.created_utc,
        experiment=str(run.experiment.get("name") or run.name),
        run=run.name,
        run_dir=str(folder),
        git_sha=full_commit(git_sha, source=folder, tell=tell),
        git_dirty=provenance.git_dirty if provenance else None,
        workload_commits=dict(_workload_commits(run, source=folder, tell=tell)),
        is_damaged=any(item.is_damage for item in run.left_out),
    )


def _workload_commits(
    run: Run, *, source: Path, tell: Callable[[str], None]
) -> Iterator[tuple[str, Repository]]:
    """Each workload of a user's file, and the repository that holds it."""
    provenances = {record.workload: record.provenance for record in run.records if record.provenance}
    for workload, provenance in provenances.items():
        if provenance.workload is not None:
            git_sha = full_commit(provenance.workload.git_sha, source=source, tell=tell)
            yield workload, replace(provenance.workload, git_sha=git_sha)


def full_commit(name: str | None, *, source: Path, tell: Callable[[str], None]) -> str | None:
    """The commit that a document names in full; None where it names none, or anything else.

    It becomes an argument of git, which must not take it for an option.

    Args:
        source: of the document. tell: hears that the name could not be used.
    """
    if name is None or _COMMIT.fullmatch(name):
        return name
    tell(f"{source} must name its commit by 40 or 64 hex digits, got {name!r:.80}; the night has no commit")
    return None


def figures_of(run: Run) -> tuple[tuple[Figure, ...], tuple[Lost, ...]]:
    """All that a run has to say, and the cases of which it says nothing.

    Of a case that failed its check no figure counts, however fast it is, and no ratio to it.
    """
    cases = standings(run).values()
    failed_checks = {
        (standing.shape, standing.strategy): check
        for standing in cases
        if (check := _failed_check(standing)) is not None
    }
    figures: list[Figure] = []
    lost: list[Lost] = []
    for standing in cases:
        check = failed_checks.get((standing.shape, standing.strategy))
        if check is not None:
            lost.append(_wrong(standing, check))
        elif standing.usable:
            has_ratio = (standing.shape, standing.baseline) not in failed_checks
            figures += _figures(standing, has_ratio=has_ratio)
        else:
            lost.append(_without_rate(standing))
    return tuple(figures), tuple(lost)


def _failed_check(standing: Standing) -> Equivalence | None:
    """The check that a case failed, by the same rule as a run's exit status; a control must fail its own."""
    if any(record.control or record.strategy_class == "control" for record in standing.records):
        return None
    checks = [record.equivalence for record in standing.records if record.equivalence is not None]
    return next((check for check in checks if check.wrong), None)


def _figures(standing: Standing, *, has_ratio: bool) -> Iterator[Figure]:
    rate = repeated_mean([math.log(rate) for rate in standing.rates])
    yield _figure(standing, RATE, rate, len(standing.rates))
    if standing.against.logs and has_ratio:
        against = standing.against
        yield _figure(standing, RATIO, against.mean(), len(against.logs), against=standing.baseline or "")
    for metric, figure in _OF_RECORDS.items():
        yield from _of_records(standing, metric, figure.values(standing.usable))
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


def _wrong(standing: Standing, check: Equivalence) -> Lost:
    status = NOT_EQUIVALENT if check.equivalent is False else BEYOND_BOUND
    because = f": {check.reason}" if check.reason else ""
    return _lost(standing, status, f"{_FAILED_CHECKS[status]}{because}")


def _without_rate(standing: Standing) -> Lost:
    failed = [record for record in standing.records if record.status == "failed"]
    last = (failed or standing.records)[-1]
    why = f"{last.error.type}: {last.error.message}" if last.error else last.plausibility or last.status
    is_by_fault = any(failed) and all(record.is_broken_by_faults for record in failed)
    return _lost(standing, BROKEN_BY_FAULT if is_by_fault else last.status, why)


def _lost(standing: Standing, status: str, message: str) -> Lost:
    return Lost(
        case=standing.records[-1].case,
        workload=standing.shape.workload,
        shape=shape_text(standing.shape),
        strategy=standing.strategy,
        status=status,
        message=message,
    )
