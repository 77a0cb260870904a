"""A case that was run, and what its repeats say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from harness.experiment.cases import Case
from harness.records.record import Record


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkedCase:
    """A case with a result; figures are those of its repeats together.

    Attributes:
        run_dir: the run folder, for `stratbench report`.
        records: one for each repeat, at least one.
    """

    case: Case
    run_dir: Path
    records: tuple[Record, ...]

    @property
    def step_s(self) -> tuple[float, ...]:
        """Median step of each window of each repeat, in seconds."""
        return tuple(seconds for record in self.records for seconds in _windows(record))

    @property
    def examples_per_s(self) -> float | None:
        """Examples per second of the median step."""
        return _of(median, [record.median_examples_per_s for record in self.records])

    @property
    def payload_bytes_per_step(self) -> float | None:
        """Bytes that the plan says all workers send in a step."""
        return _of(fmean, [record.payload_bytes_per_step for record in self.records])

    @property
    def tcp_bytes_per_step(self) -> float | None:
        """Bytes that all workers' connections sent in a step."""
        return _of(fmean, [record.tcp_bytes_per_step for record in self.records])

    @property
    def peak_rss_bytes(self) -> float | None:
        """Memory of the worker that took most."""
        return _of(fmean, [_of(max, record.peak_rss_bytes or ()) for record in self.records])

    @property
    def equivalence(self) -> str:
        """The mark of a report, such as `equivalent` or `within-bound`."""
        from reports.marks import mark_of

        return mark_of(self.records).kind

    def extra_info(self) -> dict[str, object]:
        """What a benchmark says beside its seconds; names are those of a record where it has them."""
        first = self.records[0]
        return {
            "experiment": first.experiment,
            "case": first.case,
            "workload": str(self.case.workload),
            "strategy": str(self.case.strategy),
            "class": first.strategy_class,
            "provider": first.provider,
            "device": first.device,
            "workers": first.workers,
            "replicas": first.replicas,
            "batch_size": first.batch_size,
            "repeats": len(self.records),
            "equivalence": self.equivalence,
            "examples_per_s": self.examples_per_s,
            "payload_bytes_per_step": self.payload_bytes_per_step,
            "tcp_bytes_per_step": self.tcp_bytes_per_step,
            "peak_rss_bytes": self.peak_rss_bytes,
            "comparison_key": first.comparison_key,
            "lock_hash": first.provenance.lock_hash if first.provenance else None,
        }


def problem_of(records: Sequence[Record]) -> str | None:
    """Why the repeats of a case are no result, in a line; None where they are one."""
    if not records:
        return "left no record of a repeat"
    return next((problem for record in records if (problem := _problem(record))), None)


def _problem(record: Record) -> str | None:
    if record.status != "ok":
        error = record.error
        why = f"{error.type}: {error.message}" if error else record.plausibility or "no reason is given"
        return f"{record.status}: {why}"
    check = record.equivalence
    if check is not None and check.wrong and not record.control:
        return f"computes something else than one device: {check.reason or 'no reason is given'}"
    return None if _windows(record) else "has no step times"


def _windows(record: Record) -> tuple[float, ...]:
    if record.rounds is not None:
        return record.rounds.step_s
    whole_s = record.step_s.p50 if record.step_s else None
    return () if whole_s is None else (whole_s,)


def _of(mean: Callable[[Sequence[float]], float], values: Sequence[float | None]) -> float | None:
    """A mean of the values that there are; None where there are none."""
    present = [value for value in values if value is not None]
    return mean(present) if present else None
