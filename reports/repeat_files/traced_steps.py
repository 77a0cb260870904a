"""Traced steps of stored runs as spans of time, a few for each worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from harness.records.record import Record
from harness.records.run_documents import TRACE
from harness.records.stored_run import StoreError
from reports.load import Run, legible

_MOST_BYTES = 1 << 24
_PER_S = 1e6
_KINDS = {
    "compute": "computing",
    "host": "computing",
    "transfer": "transfer",
    "copy": "transfer",
    "wait": "wait",
}
_MOST_WORKERS = 4
_GAP = 2e-3
"""Part of a step below which a gap between two spans cannot be seen in a chart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedSpan:
    """Time in which a worker computed, waited or received.

    Attributes:
        kind: `computing`, `transfer` or `wait`.
        name: name of its only operation, or the number of operations.
    """

    worker: int
    kind: str
    name: str
    start_s: float
    end_s: float


@checked(frozen=True, kw_only=True, config=ConfigDict(allow_inf_nan=False))
class _Event:
    ph: str
    name: str
    pid: int = Field(default=0, ge=0)
    cat: str = ""
    ts: float = 0.0
    dur: float = Field(default=0.0, ge=0.0)


@checked(frozen=True, kw_only=True)
class _Trace:
    traceEvents: tuple[_Event, ...]  # noqa: N815 - the name in the format


def traced_spans(run: Run, case: str) -> tuple[TracedSpan, ...]:
    """Traced step of the first repeat of a case that has one; empty without a readable one."""
    for record in run.records:
        if record.case == case and record.status == "ok" and (events := _events(run, record)):
            return tuple(_spans(events))
    return ()


def _events(run: Run, record: Record) -> Sequence[_Event]:
    try:
        data = run.stored.file(record, TRACE, most_bytes=_MOST_BYTES)
        trace = None if data is None else _adapter().validate_json(data)
    except (StoreError, ValidationError):
        return ()
    return [e for e in trace.traceEvents if e.ph == "X" and e.cat in _KINDS] if trace else ()


def _spans(events: Sequence[_Event]) -> Iterator[TracedSpan]:
    end = max(event.ts + event.dur for event in events)
    lanes: dict[tuple[int, str], list[_Event]] = {}
    for event in sorted(events, key=lambda event: event.ts):
        if event.pid < _MOST_WORKERS:
            lanes.setdefault((event.pid, _KINDS[event.cat]), []).append(event)
    for (worker, kind), own in sorted(lanes.items()):
        for together in _near(own, _GAP * end):
            yield TracedSpan(
                worker=worker,
                kind=kind,
                name=legible(together[0].name) if len(together) == 1 else f"{len(together)} operations",
                start_s=together[0].ts / _PER_S,
                end_s=max(event.ts + event.dur for event in together) / _PER_S,
            )


def _near(events: Sequence[_Event], gap: float) -> Iterator[list[_Event]]:
    """Events without larger gaps between them, by start."""
    group: list[_Event] = []
    end = 0.0
    for event in events:
        if group and event.ts > end + gap:
            yield group
            group = []
        group.append(event)
        end = max(end, event.ts + event.dur)
    if group:
        yield group


@cache
def _adapter() -> TypeAdapter[_Trace]:
    return TypeAdapter(_Trace)
