"""Figures of a night: value and error of each metric and case, and cases without a figure."""

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
from reports.changes.case_results import LAYERS, CaseResult, case_results
from reports.history.database import HistoryError, NothingUsableError
from reports.load import Run, load
from reports.rows.repeat import peak_rss_bytes
from reports.shapes import shape_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A figure that is tracked from night to night.

    Attributes:
        least_effect: smallest change of the logarithm that counts.
        usual_noise: standard deviation of a night's logarithm, assumed until many nights are stored.
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
"""Experiment name of nights from files of pytest-benchmark."""
NOT_EQUIVALENT, BEYOND_BOUND, BROKEN_BY_FAULT = "not-equivalent", "beyond-bound", "broken-by-fault"
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
"""Full name of a commit: SHA-1 or SHA-256."""
_FAILED_CHECKS = {
    NOT_EQUIVALENT: "its result differs from a single-device run",
    BEYOND_BOUND: "its error is beyond the bound of its compressors",
}
"""Status of a case that failed its check → message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Identity of a series: figures with equal subjects form one series.

    Attributes:
        case: id of the case.
        comparison_key: hash of the circumstances, including the machine.
        lock_hash: hash of all package versions; empty if unknown.
        against: baseline of a ratio, otherwise empty.
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
    """One value of a night.

    Attributes:
        value: value, positive and finite.
        error: standard error of its logarithm over n repeats; None if these are too few.
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
    """A case without a figure in a night, and the reason.

    Attributes:
        status: status of a failed repeat, else of the last one; `not-equivalent` or `beyond-bound` after a
            failed check, `broken-by-fault` after an injected fault.
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
    """A night that is not in a history yet.

    Attributes:
        run: id of its run; a history stores one night per run.
        is_damaged: true if files of its run folder are damaged or missing.
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


def run_night(folder: Path, *, notify: Callable[[str], None]) -> NewNight:
    """Read a run folder as a night.

    Args:
        notify: called with a message on each unusable part of the folder.
    Raises:
        harness.errors.StoreError: it is no run folder.
        HistoryError: its start time is lost.
        NothingUsableError: none of its records can be read.
    """
    run = load(folder)
    if not run.records and run.left_out:
        first = run.left_out[0]
        raise NothingUsableError(f"{folder} has no record that can be read: {first.where}: {first.why}")
    if not run.stored.created_utc:
        raise HistoryError(f"{folder} must say when its run began, got nothing; its run.json is damaged")
    for item in run.left_out:
        notify(f"left out: {folder}: {item.where}: {item.why}")
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
        git_sha=full_commit(git_sha, source=folder, notify=notify),
        git_dirty=provenance.git_dirty if provenance else None,
        workload_commits=dict(_workload_commits(run, source=folder, notify=notify)),
        is_damaged=any(item.is_damage for item in run.left_out),
    )


def _workload_commits(
    run: Run, *, source: Path, notify: Callable[[str], None]
) -> Iterator[tuple[str, Repository]]:
    """Each workload from a user's file, and its repository."""
    provenances = {record.workload: record.provenance for record in run.records if record.provenance}
    for workload, provenance in provenances.items():
        if provenance.workload is not None:
            git_sha = full_commit(provenance.workload.git_sha, source=source, notify=notify)
            yield workload, replace(provenance.workload, git_sha=git_sha)


def full_commit(name: str | None, *, source: Path, notify: Callable[[str], None]) -> str | None:
    """Full name of a commit; None for no name, or an invalid one.

    It becomes an argument of git, so it must not look like an option.

    Args:
        source: file that names the commit, for the message.
        notify: called with a message if the name is invalid.
    """
    if name is None or _COMMIT.fullmatch(name):
        return name
    notify(f"{source} must name its commit by 40 or 64 hex digits, got {name!r:.80}; the night has no commit")
    return None


def figures_of(run: Run) -> tuple[tuple[Figure, ...], tuple[Lost, ...]]:
    """Figures of a run, and its cases without a figure.

    A case that failed its check has no figure, and no other case has a ratio to it.
    """
    results = case_results(run).values()
    failed_checks = {
        (result.shape, result.strategy): check
        for result in results
        if (check := _failed_check(result)) is not None
    }
    figures: list[Figure] = []
    lost: list[Lost] = []
    for result in results:
        check = failed_checks.get((result.shape, result.strategy))
        if check is not None:
            status = NOT_EQUIVALENT if check.equivalent is False else BEYOND_BOUND
            reason = f": {check.reason}" if check.reason else ""
            lost.append(_lost(result, status, f"{_FAILED_CHECKS[status]}{reason}"))
        elif result.usable:
            has_ratio = (result.shape, result.baseline) not in failed_checks
            figures += _figures(result, has_ratio=has_ratio)
        else:
            lost.append(_without_rate(result))
    return tuple(figures), tuple(lost)


def _failed_check(result: CaseResult) -> Equivalence | None:
    """Check that a case failed, by the rule of a run's exit status; a control must fail its own."""
    if any(record.control or record.strategy_class == "control" for record in result.records):
        return None
    checks = [record.equivalence for record in result.records if record.equivalence is not None]
    return next((check for check in checks if check.wrong), None)


def _figures(result: CaseResult, *, has_ratio: bool) -> Iterator[Figure]:
    rate, ratios = repeated_mean([math.log(rate) for rate in result.rates]), result.ratios
    yield _figure(result, RATE, rate, len(result.rates))
    if ratios.logs and has_ratio:
        yield _figure(result, RATIO, ratios.mean(), len(ratios.logs), against=result.baseline or "")
    of_records = {metric: figure.values(result.usable) for metric, figure in _OF_RECORDS.items()}
    of_records[MEMORY] = [peak_rss_bytes(record) for record in result.usable]
    for metric, values in of_records.items():
        present = [value for value in values if value is not None and value > 0]
        if present:
            yield _figure(result, metric, RepeatedMean(value=math.log(fmean(present))), len(present))


def _figure(result: CaseResult, metric: Metric, log: RepeatedMean, n: int, *, against: str = "") -> Figure:
    record = result.usable[0]
    subject = Subject(
        case=record.case,
        workload=result.shape.workload,
        shape=shape_text(result.shape),
        strategy=result.strategy,
        comparison_key=comparison_key(record),
        lock_hash=(record.provenance.lock_hash if record.provenance else None) or "",
        metric=metric.name,
        against=against,
    )
    return Figure(subject=subject, value=math.exp(log.value), error=log.error, n=n)


def _without_rate(result: CaseResult) -> Lost:
    failed = [record for record in result.records if record.status == "failed"]
    last = (failed or result.records)[-1]
    message = f"{last.error.type}: {last.error.message}" if last.error else last.plausibility or last.status
    is_by_fault = any(failed) and all(record.is_broken_by_faults for record in failed)
    return _lost(result, BROKEN_BY_FAULT if is_by_fault else last.status, message)


def _lost(result: CaseResult, status: str, message: str) -> Lost:
    return Lost(
        case=result.records[-1].case,
        workload=result.shape.workload,
        shape=shape_text(result.shape),
        strategy=result.strategy,
        status=status,
        message=message,
    )
