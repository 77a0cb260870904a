"""Files of pytest-benchmark as nights: the median of each benchmark in seconds.

The fixture `strategy_benchmark` adds workload, strategy, circumstances, bytes and memory to `extra_info`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from reports.history.database import HistoryError, NothingUsableError
from reports.history.figures import (
    BENCHMARKS,
    MEMORY,
    METRICS,
    SECONDS,
    Figure,
    Lost,
    NewNight,
    Subject,
    full_commit,
)

_MACHINE = ("machine", "processor", "system", "python_implementation", "python_version")
_CPU = ("brand_raw", "count", "arch")
_COSTS = {
    "payload_bytes_per_step": METRICS["payload_bytes"],
    "tcp_bytes_per_step": METRICS["tcp_bytes"],
    "peak_rss_bytes": MEMORY,
}
"""Name in `extra_info` → metric of a history. Seconds take the place of rates."""
_MOST_ROUNDS = 2**31
_NO_COMMIT = ("unversioned", "unknown")
"""Commit names of pytest-benchmark without a repository, or after an error of git."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredStats:
    """Times of a benchmark in seconds; null means not a number."""

    median: float | None
    stddev: float | None = None
    rounds: Annotated[int, Field(ge=0, le=_MOST_ROUNDS)]


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredBenchmark:
    """A benchmark in a file of pytest-benchmark."""

    fullname: str
    name: str
    stats: StoredStats
    group: str | None = None
    extra_info: Mapping[str, object] | None = None

    @property
    def median_s(self) -> float | None:
        median = self.stats.median
        return median if median is not None and math.isfinite(median) and median > 0 else None


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredCommit:
    """Commit that was benchmarked."""

    id: str | None = None
    dirty: bool | None = None

    @property
    def name(self) -> str | None:
        return None if self.id in _NO_COMMIT else self.id


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredBenchmarks:
    """A file of pytest-benchmark; other fields are ignored."""

    datetime: str
    benchmarks: tuple[StoredBenchmark, ...]
    machine_info: Mapping[str, object] | None = None
    commit_info: StoredCommit | None = None


def benchmarks_night(file: Path, *, notify: Callable[[str], None]) -> NewNight:
    """Read the medians of a file as a night.

    Args:
        file: file written by `pytest --benchmark-json`.
        notify: called with a message on each unusable benchmark.
    Raises:
        NothingUsableError: none of its benchmarks has a median.
        HistoryError: it is no file of pytest-benchmark.
    """
    try:
        text = file.read_text()
        document = _adapter().validate_json(text)
        subjects = _subjects(document)
        started_utc = _utc(document.datetime)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(str(piece)[:80] for piece in first["loc"])
        # Another file may hold anything, so its text must not go into logs.
        received = f", received {first['input']!r:.80}" if path else ""
        raise _no_benchmarks(file, f"{path or 'its text'}: {first['msg']}{received}") from None
    except (OSError, ValueError, OverflowError) as error:
        raise _no_benchmarks(file, f"{error}"[:200]) from None
    lost = [_lost(of, x) for of, x in zip(subjects, document.benchmarks, strict=True) if x.median_s is None]
    if len(lost) == len(subjects):
        raise NothingUsableError(_nothing_usable(file, lost))
    for case in lost:
        notify(f"left out: {file}: {case.case}: {case.message}")
    commit = document.commit_info or StoredCommit()
    return NewNight(
        figures=tuple(_figures(subjects, document.benchmarks)),
        lost=lost,
        started_utc=started_utc,
        experiment=BENCHMARKS,
        run=hashlib.sha256(text.encode()).hexdigest(),
        run_dir=str(file),
        git_sha=full_commit(commit.name, source=file, notify=notify),
        git_dirty=commit.dirty,
    )


def _no_benchmarks(file: Path, why: str) -> HistoryError:
    return HistoryError(
        f"{file} must be a file of pytest-benchmark, got {' '.join(why.split())}; name another"
    )


@cache
def _adapter() -> TypeAdapter[StoredBenchmarks]:
    return TypeAdapter(StoredBenchmarks)


def _nothing_usable(file: Path, lost: Sequence[Lost]) -> str:
    if not lost:
        return f"{file} must contain benchmarks, got none; name another"
    first, more = lost[0], f", and so for all {len(lost)}" if len(lost) > 1 else ""
    return f"{file} has no usable benchmark: {first.case}: {first.message}{more}; run them again"


def _subjects(document: StoredBenchmarks) -> tuple[Subject, ...]:
    """Subject of each benchmark's seconds.

    Raises:
        ValueError: two subjects are equal.
    """
    machine = document.machine_info or {}
    cpu = machine.get("cpu")
    of_cpu: Mapping[str, object] = cpu if isinstance(cpu, Mapping) else {}
    facts = {
        **{name: machine.get(name) for name in _MACHINE},
        **{name: of_cpu.get(name) for name in _CPU},
    }
    subjects = tuple(_subject(benchmark, facts) for benchmark in document.benchmarks)
    name, count = next(iter(Counter(subject.case for subject in subjects).most_common(1)), ("", 0))
    if count > 1:
        raise ValueError(f"{count} benchmarks with the name {name}")
    return subjects


def _subject(benchmark: StoredBenchmark, machine: Mapping[str, object]) -> Subject:
    extra = benchmark.extra_info or {}
    return Subject(
        case=benchmark.fullname,
        workload=str(extra.get("workload") or benchmark.group or "benchmarks"),
        shape=str(machine["brand_raw"] or machine["processor"] or "this machine"),
        strategy=str(extra.get("strategy") or benchmark.name),
        comparison_key=_key(machine, extra.get("comparison_key")),
        lock_hash=str(extra.get("lock_hash") or ""),
        metric=SECONDS.name,
    )


def _lost(subject: Subject, benchmark: StoredBenchmark) -> Lost:
    return Lost(
        case=subject.case,
        workload=subject.workload,
        shape=subject.shape,
        strategy=subject.strategy,
        status="failed",
        message=f"its median must be more than 0 s and finite, got {benchmark.stats.median}",
    )


def _figures(subjects: Sequence[Subject], benchmarks: Sequence[StoredBenchmark]) -> Iterator[Figure]:
    """Figures of benchmarks with a median; those without may have stopped early."""
    for subject, benchmark in zip(subjects, benchmarks, strict=True):
        median_s, stats, extra = benchmark.median_s, benchmark.stats, benchmark.extra_info or {}
        if median_s is None:
            continue
        # Rounds of one repeat share its processes, so they are not independent.
        repeats = extra.get("repeats")
        n = repeats if isinstance(repeats, int) and 1 <= repeats <= _MOST_ROUNDS else stats.rounds
        yield Figure(subject=subject, value=median_s, error=_error(stats, median_s, n), n=n)
        for name, metric in _COSTS.items():
            value = extra.get(name)
            if isinstance(value, int | float) and math.isfinite(value) and value > 0:
                yield Figure(subject=replace(subject, metric=metric.name), value=value, error=None, n=n)


def _error(stats: StoredStats, median_s: float, n: int) -> float | None:
    """Standard error of the median's logarithm over n repeats; None if it is unknown."""
    if stats.stddev is None or not math.isfinite(stats.stddev) or min(n, stats.rounds) <= 1:
        return None
    return stats.stddev / median_s / math.sqrt(n)


def _key(facts: Mapping[str, object], of_case: object) -> str:
    known = {**facts, **({} if of_case is None else {"comparison_key": of_case})}
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]


def _utc(text: str) -> str:
    """Time with its zone; pytest-benchmark writes UTC without one."""
    moment = datetime.fromisoformat(text)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    # Some times of the first and the last year have no UTC equivalent, which raises here.
    moment.astimezone(UTC)
    return moment.isoformat()
