"""What measuring takes of a step: windows in which each step is timed and kept, and windows without, in turn.

Counters of bytes, cores and GPUs are read between windows, and garbage is not collected in either kind.
"""

from harness.errors import CaseError, first_line
from harness.measure.timeouts import USUAL, Timeouts
from harness.provision.protocols import ProcessSet
from harness.records.facts.costs import ObserverEffect
from harness.records.steps_file import Steps
from harness.worker.jobs.training import TimedSteps, run_steps, settle, unobserved_steps


def observer_effect(
    processes: ProcessSet,
    steps: Steps,
    *,
    n_pairs: int,
    window_shape: tuple[int, int],
    settles: bool = False,
    timeouts: Timeouts = USUAL,
) -> ObserverEffect:
    """Have the processes of a case make windows of both kinds, each first in every other pair.

    What has been measured stands whatever happens to them.

    Args:
        steps: that have been made.
        window_shape: counted steps of a window, and those that lead into it.
        settles: whether updates go on beside the steps.
    """
    n_steps, n_lead = window_shape
    n_workers = len(processes.pids)
    longest_s = float((steps.end_s - steps.start_s).max())
    limit_s = timeouts.steps_s(n_steps + n_lead, [longest_s])
    first = int(steps.step.max()) + 1
    with_s: list[float] = []
    without_s: list[float] = []

    def observed() -> None:
        args = [(n_lead + n_steps, first)] * n_workers
        timed = processes.call(run_steps, args, timeout_s=limit_s, stage="collect")
        with_s.append(max(_mean_s(steps, n_lead) for steps in timed if steps.weights))

    def unobserved() -> None:
        args = [(n_steps, n_lead, first)] * n_workers
        without_s.append(max(processes.call(unobserved_steps, args, timeout_s=limit_s, stage="collect")))

    try:
        for pair in range(n_pairs):
            for window in (observed, unobserved)[:: -1 if pair % 2 else 1]:
                window()
                first += n_lead + n_steps
                if settles:
                    workers = [(n_workers,)] * n_workers
                    processes.call(settle, workers, timeout_s=timeouts.setup_s, stage="collect")
    except CaseError as error:
        # What can be done about a failed case is of no use here: it has its result.
        what = first_line(str(error)).partition(";")[0]
        return ObserverEffect(why_none=f"a window failed: {what}", failed=True)
    return ObserverEffect(with_s=tuple(with_s), without_s=tuple(without_s))


def _mean_s(steps: TimedSteps, n_lead: int) -> float:
    counted_s = steps.times.end_s[-1] - steps.times.start_s[n_lead]
    return float(counted_s) / (len(steps.times.end_s) - n_lead)
