"""A traced step as a file for Perfetto or chrome://tracing."""

import heapq
from collections.abc import Sequence

from harness.canonical import JsonValue
from harness.worker.tracing.step_trace import TraceEvent, WorkerTrace, in_pieces

MAX_EVENTS = 4000
_NAME_LENGTH = 200
_STEP = "step"
_PER_S = 1e6  # the format counts microseconds


def trace_document(title: str, traces: Sequence[WorkerTrace]) -> dict[str, JsonValue]:
    """All workers' steps in the trace-event format: a process for each worker, its rows as threads.

    Where there are more than `MAX_EVENTS` events the longest are kept, and the file says so.

    Args:
        traces: by task, as `together` leaves them.
    Source:
        Trace Event Format (the Catapult project), "complete" and "metadata" events.
    """
    steps = [_whole(trace) for trace in traces]
    pieces = [
        (task, piece) for task, trace in enumerate(traces) for e in trace.events for piece in in_pieces(e)
    ]
    kept = heapq.nlargest(MAX_EVENTS, pieces, key=lambda item: item[1].end_s - item[1].start_s)
    n_left_out = len(pieces) - len(kept) + sum(trace.n_left_out for trace in traces)
    origin_s = min(trace.start_s for trace in traces)
    document: list[JsonValue] = []
    for task, step in enumerate(steps):
        own = [step, *sorted((e for worker, e in kept if worker == task), key=lambda e: (e.row, e.start_s))]
        document += _process(task, own, origin_s)
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            "case": title,
            "events_left_out": n_left_out,
            "note": f"the longest {len(kept)} events of one step, made after the timed windows",
        },
        "traceEvents": document,
    }


def _whole(trace: WorkerTrace) -> TraceEvent:
    return TraceEvent(row=_STEP, name=_STEP, op=_STEP, kind="part", start_s=trace.start_s, end_s=trace.end_s)


def _process(task: int, events: Sequence[TraceEvent], origin_s: float) -> list[JsonValue]:
    document: list[JsonValue] = [_named("process_name", task, 0, f"worker {task}")]
    numbers: dict[str, int] = {}
    for lane, event in _in_lanes(events):
        if lane not in numbers:
            numbers[lane] = len(numbers)
            document.append(_named("thread_name", task, numbers[lane], lane))
        document.append(_complete(event, task, numbers[lane], origin_s))
    return document


def _in_lanes(events: Sequence[TraceEvent]) -> list[tuple[str, TraceEvent]]:
    """Events with the names of their lanes: what runs at the same time in a row goes side by side.

    Args:
        events: those of a row in the order of their starts.
    """
    ends_s: dict[str, list[float]] = {}
    placed = []
    for event in events:
        lanes = ends_s.setdefault(event.row, [])
        lane = next((k for k, end_s in enumerate(lanes) if end_s <= event.start_s), len(lanes))
        lanes[lane : lane + 1] = [event.end_s]
        placed.append((f"{event.row} ({lane + 1})" if lane else event.row, event))
    return placed


def _named(what: str, task: int, thread: int, name: str) -> JsonValue:
    return {"ph": "M", "name": what, "pid": task, "tid": thread, "args": {"name": name}}


def _complete(event: TraceEvent, task: int, thread: int, origin_s: float) -> JsonValue:
    args: dict[str, JsonValue] = {"op": event.op[:_NAME_LENGTH]}
    if event.n_bytes is not None:
        args["bytes"] = event.n_bytes
    return {
        "ph": "X",
        "name": event.name[:_NAME_LENGTH],
        "cat": event.kind,
        "pid": task,
        "tid": thread,
        "ts": round((event.start_s - origin_s) * _PER_S, 1),
        "dur": round((event.end_s - event.start_s) * _PER_S, 1),
        "args": args,
    }
