"""Workloads that are not the same in two runs: their ratios to a baseline do not compare.

A baseline is a case of the same workload. Where that has become another model, so has the baseline, and a
ratio may improve while everything gets slower.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from harness.records.facts.circumstances import ModelSize
from harness.records.record import Record
from reports.changes.sent_bytes import PAYLOAD
from reports.changes.standings import Standing
from reports.quantities import byte_count, plain, times

Pair = tuple[Standing, Standing]
"""One case in both runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadChange:
    """A workload in both runs.

    Attributes:
        differs: facts that say that it is another one. unknown: facts that a run did not record.
    """

    workload: str
    differs: tuple[str, ...]
    unknown: tuple[str, ...]


def workload_changes(pairs: Iterable[tuple[Standing | None, Standing | None]]) -> tuple[WorkloadChange, ...]:
    """Workloads that differ between two runs, or may differ because a run lacks their facts."""
    by_workload: dict[str, list[Pair]] = {}
    for before, after in pairs:
        if before is not None and after is not None:
            by_workload.setdefault(after.shape.workload, []).append((before, after))
    changes = (
        WorkloadChange(
            workload=workload,
            differs=tuple(dict.fromkeys([*_file(of_workload), *_model(of_workload), *_payload(of_workload)])),
            unknown=tuple(_unknown(of_workload)),
        )
        for workload, of_workload in by_workload.items()
    )
    return tuple(change for change in changes if change.differs or change.unknown)


def _file(pairs: Sequence[Pair]) -> Iterator[str]:
    old, new = ({digest for each in run for digest in _digests(each)} for run in zip(*pairs, strict=True))
    if old and new and old != new:
        yield "its file"


def _digests(standing: Standing) -> set[str]:
    """Hashes of the workload's file, where it is a user's own."""
    digests = {_digest(record) for record in standing.records}
    return {digest for digest in digests if digest is not None}


def _digest(record: Record) -> str | None:
    return record.provenance.files.get(record.workload) if record.provenance else None


def _model(pairs: Sequence[Pair]) -> Iterator[str]:
    for before, after in pairs:
        old, new = _size(before), _size(after)
        if old is None or new is None:
            continue
        if old.n_variables != new.n_variables:
            yield f"number of variables: {old.n_variables} before, now {new.n_variables}"
        if old.variable_bytes != new.variable_bytes:
            yield f"bytes of variables: {_moved(old.variable_bytes, new.variable_bytes)}"
        flops = old.flops_per_example, new.flops_per_example
        if flops[0] != flops[1]:
            shown = [plain(value) if value is not None else "not stated" for value in flops]
            yield f"FLOPs of an example: {shown[0]} before, now {shown[1]}"


def _size(standing: Standing) -> ModelSize | None:
    return next((record.model for record in standing.usable if record.model is not None), None)


def _payload(pairs: Sequence[Pair]) -> Iterator[str]:
    """The payload, if it changed in all cases that send, of two strategies at least."""
    moved = [(after.strategy.partition(":")[0], _moved_payload(before, after)) for before, after in pairs]
    sending = {strategy for strategy, change in moved if change is not None}
    changes = [change for _, change in moved if change is not None]
    if len(sending) > 1 and all(changes):
        yield f"payload of a step: {changes[0]}"


def _moved_payload(before: Standing, after: Standing) -> str | None:
    """Change of a payload, empty where it has none; None where nothing is sent or it is not known."""
    old, new = PAYLOAD.of(before.usable), PAYLOAD.of(after.usable)
    if not old or not new or not (any(old) or any(new)):
        return None
    was, now = fmean(old), fmean(new)
    if abs(now - was) <= PAYLOAD.least_effect * was:
        return ""
    return f"{after.strategy} {_moved(was, now)}"


def _moved(old: float, new: float) -> str:
    by = f", {times(new / old)}" if old else ""
    return f"{byte_count(old)} before, now {byte_count(new)}{by}"


def _unknown(pairs: Sequence[Pair]) -> Iterator[str]:
    """Facts that a run that has results did not record, as older versions did not."""
    usable = [pair for pair in pairs if pair[0].usable and pair[1].usable]
    if any(_size(each) is None for pair in usable for each in pair):
        yield "its variables and FLOPs"
    of_file = [[bool(_digests(each)) for each in pair] for pair in usable]
    if any(any(pair) and not all(pair) for pair in of_file):
        yield "the hash of its file"
