"""What measuring itself takes: windows with all instruments and windows without, in turn."""

from harness.errors import CaseError
from harness.measure.timeouts import USUAL, Timeouts
from harness.provision.protocols import ProcessSet
from harness.records.record import ObserverEffect
from harness.records.steps_file import Steps
from harness.worker.jobs.training import TimedSteps, run_steps, unobserved_steps


def observer_effect(
    processes: ProcessSet,
    steps: Steps,
    *,
    n_pairs: int,
    window_shape: tuple[int, int],
    timeouts: Timeouts = USUAL,
) -> ObserverEffect:
    """Have the processes of a case make windows with and without instruments, each first in every other pair.

    What has been measured stands whatever happens to them.

    Args:
        steps: that have been made.
        window_shape: counted steps of a window, and those that lead into it.
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
    except CaseError as error:
        return ObserverEffect(why_none=f"a window failed: {error}")
    return ObserverEffect(with_s=tuple(with_s), without_s=tuple(without_s))


def _mean_s(steps: TimedSteps, n_lead: int) -> float:
    counted_s = steps.times.end_s[-1] - steps.times.start_s[n_lead]
    return float(counted_s) / (len(steps.times.end_s) - n_lead)
