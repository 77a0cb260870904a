"""Traces one step of a case on all workers, after everything that is measured."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.canonical import JsonValue
from harness.errors import NO_DEVICE, CaseError
from harness.measure.collector import Measurement
from harness.measure.timeouts import USUAL, Timeouts
from harness.measure.trace_file import trace_document
from harness.provision.protocols import ProcessSet
from harness.records.facts.costs import TracedTimes
from harness.worker.jobs.profile_step import trace_step
from harness.worker.tracing.step_trace import WorkerTrace, doubts, summary, together

_GPU = re.compile(r"/job:(\w+)/replica:0/task:(\d+)/(device:GPU:\d+)$")


@dataclass(frozen=True, kw_only=True, slots=True)
class Traced:
    """A traced step.

    Attributes:
        step: where its time went. document: for `trace.json`. Both None where there is no trace.
        note: what a record should say about the trace.
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
    """Make a few steps more, the last of them traced; the processes may be of no more use after it.

    What has been measured stands whatever happens to them, unless it ran elsewhere than on its GPUs.

    Args:
        title: of the trace.
        gpus_per_worker: GPUs on each of which a part of the step must run.
        period: steps after which what a step does begins anew; the first step of one is traced.
        compiles: whether steps that build graphs compile them too, each kind of a period at its first.
    Raises:
        CaseError: `no-device`, when the step did not run on each GPU.
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
        return Traced(note="no traced step: updates passed it by before all workers had made it")
    _require_on_gpus(traces, gpus_per_worker)
    return Traced(
        step=summary(traces),
        document=trace_document(title, traces),
        note=doubts(traces),
    )


def _require_on_gpus(traces: Sequence[WorkerTrace], gpus_per_worker: Sequence[int]) -> None:
    """Refuse a step that TensorFlow placed on the host instead of its GPUs."""
    seen = [
        (worker, *gpu.groups())
        for worker, trace in enumerate(traces)
        for gpu in map(_GPU.match, trace.devices)
        if gpu is not None
    ]
    # A session on devices of its own is its job's only task.
    used = {f"task:{worker if job == 'localhost' else task}/{gpu}" for worker, job, task, gpu in seen}
    wanted = (f"task:{worker}/device:GPU:{k}" for worker, n in enumerate(gpus_per_worker) for k in range(n))
    idle = [name for name in wanted if name not in used]
    if idle:
        raise CaseError(
            NO_DEVICE,
            "every replica must compute on its GPU, got a traced step of which no operation ran on "
            f"{', '.join(idle)}; see the log of the worker for TensorFlow's reason, and `stratbench doctor`",
            stage="collect",
            field="cluster.device",
        )
