"""One traced step of a worker, after all measurements."""

import heapq
import itertools
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.worker.jobs.training import Training
from harness.worker.process.job import JobState
from harness.worker.process.os_process import boot_id
from harness.worker.session.step_trace import WorkerTrace, n_transfers
from harness.worker.session.timed_loop import ProcessFaults
from harness.worker.variable_parts import Array

if TYPE_CHECKING:
    from harness.worker.session.session import WorkerSession

MAX_EVENTS = 20_000


def trace_step(state: JobState, n_before: int) -> WorkerTrace | None:
    """Job that traces a step of this worker while all workers trace theirs; see `trace`."""
    from harness.worker.session.session import WorkerSession

    training = state.get(Training)
    assert isinstance(training.session, WorkerSession)
    feeds = itertools.islice(itertools.cycle(training.feeds), n_before + 1)
    return trace(training.session, list(feeds), training.faults)


def trace(
    session: "WorkerSession", feeds: Sequence[Sequence[Array]], faults: ProcessFaults | None = None
) -> WorkerTrace | None:
    """Run steps and trace the last.

    The first one builds its graphs, because TensorFlow does not trace those of the prepared step.

    Args:
        feeds: batches of two steps or more.
        faults: faults of this process.
    Returns:
        Longest events, those of the host last; None if updates overtook the step.
    """
    from harness.worker.session import trace_events

    *before, last = feeds
    faults = faults or ProcessFaults()
    step = faults.around(session.step)
    with session.traced() as tracer:
        for feed in before:
            step(feed)
        tracer.begin()
        begun_ns = time.time_ns()
        step(last)
    seen = trace_events.operations(tracer.seen, origin_ns=begun_ns, waits=session.waits, calls=session.calls)
    events = [*trace_events.transfers(tracer.moved, origin_ns=begun_ns), *seen]
    if not tracer.seen or not events:
        return None
    # A kernel is short, but its launch is long.
    longest = heapq.nlargest(MAX_EVENTS, events, key=lambda e: (e.kind != "host", e.end_s - e.start_s))
    # Tracing begins before the first operation and ends after the last.
    start_s = min(event.start_s for event in events)
    return WorkerTrace(
        clock=boot_id(),
        start_s=min(start_s, 0.0) if faults.waited_s else start_s,
        end_s=max(event.end_s for event in events),
        events=tuple(longest),
        n_left_out=len(events) - len(longest),
        n_transfers=n_transfers(events),
        devices=trace_events.devices(tracer.seen),
        origin_s=begun_ns / 1e9,
    )
