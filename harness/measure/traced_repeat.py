"""Traces one step of a case on all workers, after everything that is measured."""

from collections.abc import Mapping
from dataclasses import dataclass

from harness.canonical import JsonValue
from harness.errors import CaseError
from harness.measure.collector import Measurement
from harness.measure.timeouts import USUAL, Timeouts
from harness.measure.trace_file import trace_document
from harness.provision.protocols import ProcessSet
from harness.records.facts.costs import TracedTimes
from harness.worker.jobs.profile_step import trace_step
from harness.worker.tracing.step_trace import doubts, summary, together


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
    compiles: bool = False,
    timeouts: Timeouts = USUAL,
) -> Traced:
    """Make a few steps more, the last of them traced; the processes may be of no more use after it.

    What has been measured stands whatever happens to them.

    Args:
        title: of the trace.
        period: steps after which what a step does begins anew; the first step of one is traced.
        compiles: whether steps that build graphs compile them too, each kind of a period at its first.
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
    return Traced(step=summary(traces), document=trace_document(title, traces), note=doubts(traces))
