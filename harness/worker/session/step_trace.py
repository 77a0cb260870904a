"""Times of one traced step: workers' traces, aligned and split by kind."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from harness.records.costs import TracedTimes

Kind = Literal["compute", "transfer", "copy", "host", "wait", "part"]
_ORDER: tuple[Kind, ...] = ("compute", "transfer", "copy", "host", "wait")
GPU_DEVICE = re.compile(r"/job:(\w+)/replica:\d+/task:(\d+)/(device:GPU:\d+)$")
"""Name of a GPU as a device of a task: its job, task and device."""
_TRACED_GPU = re.compile(r"/device:GPU:\d+$")


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceEvent:
    """An event of a traced step.

    Attributes:
        row: place of the event, such as a device of a task.
        kind: `compute`; `transfer` from another worker; `copy` within a worker, from, to or between its GPUs;
            `host`, operations that the host of GPUs runs or launches; `wait` for another worker; `part` of
            another event, or an event with parts of its own.
        start_s, end_s: seconds from the origin of the worker's trace.
        ready_s: time at which a transfer's tensor could be sent; earlier time is a wait; None if unknown.
        group: common id of a collective's events; it begins when its last member has arrived.
        receiver: task that received `n_bytes`; None if unknown.
    """

    row: str
    name: str
    op: str
    kind: Kind
    start_s: float
    end_s: float
    ready_s: float | None = None
    group: str | None = None
    receiver: int | None = None
    n_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerTrace:
    """One worker's traced step.

    Attributes:
        clock: id of the clock; times of one machine can be compared.
        start_s, end_s: times of its first and last event, from its origin.
        origin_s: wall clock at time 0; seconds since 1970 alone would lose fractions of microseconds.
        n_left_out: events shorter than those kept.
        n_transfers: transfers of all events; a collective's for several replicas of a worker is one.
        devices: TensorFlow's names of all devices used.
    """

    clock: str
    start_s: float
    end_s: float
    events: tuple[TraceEvent, ...]
    n_left_out: int = 0
    n_transfers: int = 0
    devices: tuple[str, ...] = ()
    origin_s: float = 0.0


def together(traces: Sequence[WorkerTrace]) -> list[WorkerTrace]:
    """Split collectives into waiting and transfer, which begins when the last worker has arrived.

    All times then count from the first worker's origin. Workers' clocks must agree, as on a single host.
    """
    traces = [_counted_from(trace, traces[0].origin_s) for trace in traces]
    begun_s: dict[str, float] = {}
    for event in (event for trace in traces for event in trace.events):
        if event.group is not None:
            begun_s[event.group] = max(event.start_s, begun_s.get(event.group, event.start_s))
    return [
        replace(
            trace,
            events=tuple(
                e if e.group is None else replace(e, ready_s=begun_s[e.group]) for e in trace.events
            ),
        )
        for trace in traces
    ]


def _counted_from(trace: WorkerTrace, origin_s: float) -> WorkerTrace:
    later_s = trace.origin_s - origin_s
    return replace(
        trace,
        origin_s=origin_s,
        start_s=trace.start_s + later_s,
        end_s=trace.end_s + later_s,
        events=tuple(
            replace(
                e,
                start_s=e.start_s + later_s,
                end_s=e.end_s + later_s,
                ready_s=None if e.ready_s is None else e.ready_s + later_s,
            )
            for e in trace.events
        ),
    )


def n_transfers(events: Iterable[TraceEvent]) -> int:
    """Number of transfers; those of a collective's members count as one."""
    groups = [event.group for event in events if event.kind == "transfer"]
    return len({group for group in groups if group is not None}) + groups.count(None)


def doubts(traces: Sequence[WorkerTrace]) -> str | None:
    """Sentence with the reason why a trace may be incomplete; None if it seems complete."""
    notes = []
    n_clocks = len({trace.clock for trace in traces})
    if n_clocks > 1:
        notes.append(f"waits and transfers are split by the clocks of {n_clocks} machines, which may differ")
    n_left_out = sum(trace.n_left_out for trace in traces)
    if n_left_out:
        notes.append(f"the {n_left_out} shortest events count as neither compute nor transfer")
    return f"traced step: {', and '.join(notes)}" if notes else None


def sees_no_kernels(traces: Sequence[WorkerTrace]) -> bool:
    """True if a worker's step ran on GPUs, but no kernel was traced."""
    return any(
        any(map(GPU_DEVICE.match, trace.devices)) and not any(map(_TRACED_GPU.match, trace.devices))
        for trace in traces
    )


def split_pieces(event: TraceEvent) -> list[TraceEvent]:
    """Waiting and transfer part of a transfer; any other event unchanged."""
    if event.kind != "transfer" or event.ready_s is None or event.ready_s <= event.start_s:
        return [event]
    ready_s = min(event.ready_s, event.end_s)
    waiting = replace(event, kind="wait", end_s=ready_s, n_bytes=None, receiver=None)
    return [waiting, replace(event, start_s=ready_s)]


def summary(traces: Sequence[WorkerTrace]) -> TracedTimes:
    """Split of each worker's step by cause.

    Args:
        traces: traces by task, as `together` returns them.
    """
    shares = [_shares(trace) for trace in traces]
    received: dict[int, int] = {}
    for event in (event for trace in traces for event in trace.events):
        if event.receiver is not None and event.n_bytes is not None:
            received[event.receiver] = received.get(event.receiver, 0) + event.n_bytes
    on_gpu = any(GPU_DEVICE.match(device) for trace in traces for device in trace.devices)
    return TracedTimes(
        step_s=tuple(trace.end_s - trace.start_s for trace in traces),
        compute_s=tuple(share["compute"] for share in shares),
        transfer_s=tuple(share["transfer"] + share["copy"] for share in shares),
        wait_s=tuple(share["wait"] for share in shares),
        copy_s=tuple(share["copy"] for share in shares) if on_gpu else None,
        host_s=tuple(share["host"] for share in shares) if on_gpu else None,
        receiving_s=tuple(_covered_s(trace, ("transfer",)) for trace in traces),
        received_bytes=tuple(received.get(task, 0) for task in range(len(traces))) if received else None,
        n_transfers=tuple(trace.n_transfers for trace in traces),
    )


def _shares(trace: WorkerTrace) -> dict[Kind, float]:
    """Seconds of each kind, without time covered by an earlier kind."""
    until_s = [0.0, *(_covered_s(trace, _ORDER[: k + 1]) for k in range(len(_ORDER)))]
    return {kind: until_s[k + 1] - until_s[k] for k, kind in enumerate(_ORDER)}


def _covered_s(trace: WorkerTrace, kinds: Iterable[Kind]) -> float:
    wanted = frozenset(kinds)
    pieces = [piece for event in trace.events for piece in split_pieces(event) if piece.kind in wanted]
    covered_s, reached_s = 0.0, trace.start_s
    for start_s, end_s in sorted((piece.start_s, min(piece.end_s, trace.end_s)) for piece in pieces):
        covered_s += max(0.0, end_s - max(start_s, reached_s))
        reached_s = max(reached_s, end_s)
    return covered_s
