"""Traces one step of a case on all workers, after everything that is measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.canonical import JsonValue
from harness.errors import NO_DEVICE, CaseError
from harness.measure.collector import Measurement
from harness.measure.timeouts import USUAL, Timeouts
from harness.measure.trace_file import trace_document
from harness.provision.protocols import ProcessSet
from harness.records.facts.costs import TracedTimes
from harness.worker.jobs.profile_step import trace_step
from harness.worker.tracing.step_trace import (
    GPU_DEVICE,
    WorkerTrace,
    doubts,
    sees_no_kernels,
    summary,
    together,
)

_NO_KERNELS = (
    "no traced step: TensorFlow traced operations on GPUs and none of their kernels; see that it can load "
    "CUDA's libcupti and that no other profiler uses the GPU"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Traced:
    """A traced step.

    Attributes:
        step: where its time went; None where that is not known.
        document: for `trace.json`; None where there is no trace.
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
        gpus_per_worker: GPUs, or logical devices of shared ones; the step must run on each.
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
    """Refuse a step that TensorFlow placed on the host instead of its GPUs."""
    seen = [
        (worker, *gpu.groups())
        for worker, trace in enumerate(traces)
        for gpu in map(GPU_DEVICE.match, trace.devices)
        if gpu is not None
    ]
    # A session on devices of its own is its job's only task.
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
