"""Traced step: one step on all workers after the timed windows, and its file for Perfetto."""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.canonical import JsonValue
from harness.errors import NO_DEVICE, CaseError
from harness.measure.collector import Measurement
from harness.measure.timeouts import USUAL, Timeouts
from harness.provision.protocols import ProcessSet
from harness.records.costs import TracedTimes
from harness.worker.jobs.profile_step import trace_step
from harness.worker.session.step_trace import (
    GPU_DEVICE,
    TraceEvent,
    WorkerTrace,
    doubts,
    sees_no_kernels,
    split_pieces,
    summary,
    together,
)

MAX_EVENTS = 4000
_NAME_LENGTH = 200
_STEP = "step"
_PER_S = 1e6  # the format counts microseconds


def trace_document(title: str, traces: Sequence[WorkerTrace]) -> dict[str, JsonValue]:
    """All workers' steps in the trace-event format: a process for each worker, a thread for each row.

    Beyond `MAX_EVENTS` events only the longest are kept, with a note in the file.

    Args:
        traces: traces by task, as `together` returns them.
    Source:
        Trace Event Format (the Catapult project), "complete" and "metadata" events.
    """
    steps = [_whole(trace) for trace in traces]
    pieces = [
        (task, piece) for task, trace in enumerate(traces) for e in trace.events for piece in split_pieces(e)
    ]
    longest = heapq.nlargest(MAX_EVENTS, pieces, key=lambda item: item[1].end_s - item[1].start_s)
    n_left_out = len(pieces) - len(longest) + sum(trace.n_left_out for trace in traces)
    origin_s = min(trace.start_s for trace in traces)
    document: list[JsonValue] = []
    for task, step in enumerate(steps):
        own = [
            step,
            *sorted((e for worker, e in longest if worker == task), key=lambda e: (e.row, e.start_s)),
        ]
        document += _process(task, own, origin_s)
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            "case": title,
            "events_left_out": n_left_out,
            "note": f"the longest {len(longest)} events of one step, made after the timed windows",
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
    """Events with the names of their lanes; overlapping events of a row get different lanes.

    Args:
        events: events of one row, by start.
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


_NO_KERNELS = (
    "no traced step: TensorFlow traced no GPU kernels; check that it can load "
    "CUDA's libcupti and that no other profiler uses the GPU"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Traced:
    """A traced step.

    Attributes:
        step: traced times; None if unknown.
        document: content of `trace.json`; None without a trace.
        note: note about the trace for the record.
    """

    step: TracedTimes | None = None
    document: Mapping[str, JsonValue] | None = None
    note: str | None = None


def traced(
    processes: ProcessSet,
    measured: Measurement,
    *,
    title: str,
    period: int,
    gpus_per_worker: Sequence[int] = (),
    compiles: bool = False,
    timeouts: Timeouts = USUAL,
) -> Traced:
    """Run a few more steps and trace the last; the processes may be unusable afterwards.

    A failure does not invalidate the measurement, unless a step did not run on its GPUs.

    Args:
        title: title of the trace.
        gpus_per_worker: number of GPUs, or of logical devices of shared ones; the step must run on each.
        period: steps after which the kinds of steps repeat; the first step of a period is traced.
        compiles: True if a traced step is compiled anew, each kind of a period at its first run.
    Raises:
        CaseError: `no-device`, if the step did not run on each GPU.
    """
    n_done = int(measured.steps.step.max()) + 1
    n_before = 1 + -(n_done + 1) % period
    known_s = [float((measured.steps.end_s - measured.steps.start_s).max())]
    if compiles:
        n_before, known_s = n_before + period, []
    try:
        answers = processes.call(
            trace_step,
            [(n_before,)] * len(processes.pids),
            timeout_s=timeouts.steps_s(n_before + 1, known_s),
            stage="collect",
        )
    except CaseError as error:
        return Traced(note=f"no traced step: {error}")
    traces = together([answer for answer in answers if answer is not None])
    if len(traces) < len(answers):
        return Traced(
            note="no traced step: some workers skipped the step, because updates do not wait for them"
        )
    _require_on_gpus(traces, gpus_per_worker)
    document = trace_document(title, traces)
    if sees_no_kernels(traces):
        return Traced(document=document, note=_NO_KERNELS)
    step = summary(traces)
    step = replace(step, host_bound=step.is_host_bound(measured.step_s.p50))
    bound = (
        f"host-bound: kernels ran {100 * step.compute_share:.0f} % of the traced step; the host launches "
        "them too slowly - raise batch_size or cluster.cores_per_worker, or try measure.xla"
    )
    notes = (bound if step.host_bound else None, doubts(traces))
    return Traced(step=step, document=document, note="; ".join(filter(None, notes)) or None)


def _require_on_gpus(traces: Sequence[WorkerTrace], gpus_per_worker: Sequence[int]) -> None:
    seen = [
        (worker, *gpu.groups())
        for worker, trace in enumerate(traces)
        for gpu in map(GPU_DEVICE.match, trace.devices)
        if gpu is not None
    ]
    # A session on its own devices has only the task of its job.
    used = {f"task:{worker if job == 'localhost' else task}/{gpu}" for worker, job, task, gpu in seen}
    wanted = (f"task:{worker}/device:GPU:{k}" for worker, n in enumerate(gpus_per_worker) for k in range(n))
    idle = [name for name in wanted if name not in used]
    if idle:
        raise CaseError(
            NO_DEVICE,
            "every replica must compute on its GPU, and in the traced step no operation ran on "
            f"{', '.join(idle)}; see the log of the worker for TensorFlow's reason, and `stratbench doctor`",
            stage="collect",
            field="cluster.device",
        )
