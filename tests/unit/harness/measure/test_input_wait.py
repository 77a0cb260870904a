"""What steps wait for their input: as the loop sees it, over counted steps, and when it binds a case."""

import numpy as np
import pytest

from harness.measure.input_wait import input_wait
from harness.measure.made_steps import Window, steps_of_workers
from harness.records.facts.costs import InputWait
from harness.worker.jobs.training import TimedSteps
from harness.worker.session.timed_loop import StepTimes, run_steps_on_pipeline


def window(*waits_s: list[float] | None, step_s: float = 1.0, n_lead: int = 0) -> Window:
    """One window whose workers wait so long in each step."""
    n_steps = next(len(each) for each in waits_s if each is not None) if any(waits_s) else 2
    start_s = np.arange(n_steps) * step_s
    rows = tuple(
        TimedSteps(
            times=StepTimes(
                start_s=start_s,
                end_s=start_s + step_s,
                losses=np.zeros((n_steps, 1)),
                input_s=None if each is None else np.asarray(each),
            ),
            weights=(1.0,),
        )
        for each in waits_s
    )
    return Window(number=0, n_lead=n_lead, rows=rows)


def test_the_worker_that_waits_longest_counts_and_steps_that_lead_in_do_not() -> None:
    found = input_wait([window([0.9, 0.1, 0.0], [0.9, 0.0, 0.3], n_lead=1)])
    assert found == InputWait(
        mean=pytest.approx(0.2),
        share=pytest.approx(0.2),
        mean_of_workers=(pytest.approx(0.05), pytest.approx(0.15)),
        bound=True,
    )


@pytest.mark.parametrize(("wait_s", "bound"), [(0.09, False), (0.11, True)])
def test_a_tenth_of_the_steps_binds(wait_s: float, bound: bool) -> None:
    found = input_wait([window([wait_s, wait_s])])
    assert found is not None
    assert found.bound is bound


def test_staged_batches_have_no_wait() -> None:
    assert input_wait([window(None, None)]) is None
    assert steps_of_workers([window(None)]).input_s is None


def test_every_wait_is_kept() -> None:
    steps = steps_of_workers([window([0.1, 0.2], [0.3, 0.4]), window([0.5], [0.6])])
    assert steps.input_s is not None
    assert steps.input_s.tolist() == [0.1, 0.2, 0.5, 0.3, 0.4, 0.6]


def test_the_loop_takes_a_batch_within_each_step_and_none_beyond(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 10.5, 12.0, 12.25, 15.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    batches = iter([[np.array(k)] for k in range(3)])
    times = run_steps_on_pipeline(lambda batch: [batch[0]], batches, n_steps=2, n_losses=1)
    assert times.input_s is not None
    assert times.input_s.tolist() == [0.5, 0.25]
    assert (times.end_s - times.start_s).tolist() == [2.0, 3.0]
    assert times.losses.ravel().tolist() == [0.0, 1.0]
    assert [int(part) for (part,) in batches] == [2]
