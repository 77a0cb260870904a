"""Windows with instruments and without, in turn, on the processes of a case."""

from typing import Any

import numpy as np
import pytest
from fake_processes import FakeProcesses

from harness.errors import CaseError
from harness.measure.observer_effect import observer_effect
from harness.records.facts.costs import ObserverEffect
from harness.records.steps_file import Steps
from harness.worker.jobs.training import TimedSteps, run_steps, unobserved_steps
from harness.worker.session.timed_loop import StepTimes, in_turn, seconds_unobserved

N_DONE, N_STEPS, N_LEAD = 7, 4, 2


class Processes(FakeProcesses):
    """Two workers with steps of 2 s and 3 s; a step that leads takes ten times as long."""

    def __init__(self) -> None:
        super().__init__(["127.0.0.1"] * 2)
        self.asked: list[tuple[Any, int]] = []

    def answer(self, job, per_worker_args, stage):
        assert stage == "collect"
        self.asked.append((job, per_worker_args[0][-1]))
        return [step_s + 0.5 if job is unobserved_steps else timed(step_s) for step_s in (2.0, 3.0)]


def timed(step_s: float) -> TimedSteps:
    lengths = np.array([10 * step_s] * N_LEAD + [step_s] * N_STEPS)
    end_s = np.cumsum(lengths)
    times = StepTimes(start_s=end_s - lengths, end_s=end_s, losses=np.zeros((len(lengths), 1)))
    return TimedSteps(times=times, weights=(1.0,))


def made() -> Steps:
    numbers = np.arange(N_DONE, dtype=np.int32)
    start_s = numbers.astype(float)
    return Steps(
        worker=numbers * 0,
        step=numbers,
        start_s=start_s,
        end_s=start_s + 1,
        loss=start_s,
        warmup=numbers < 0,
        window=numbers,
    )


def found(processes: FakeProcesses, n_pairs: int = 3) -> ObserverEffect:
    return observer_effect(processes, made(), n_pairs=n_pairs, window_shape=(N_STEPS, N_LEAD))


def test_each_kind_of_window_is_first_in_every_other_pair_and_steps_go_on() -> None:
    processes = Processes()
    found(processes)
    kinds = [run_steps, unobserved_steps, unobserved_steps, run_steps, run_steps, unobserved_steps]
    assert [job for job, _ in processes.asked] == kinds
    assert [first for _, first in processes.asked] == [N_DONE + 6 * k for k in range(6)]


def test_the_mean_step_of_the_slowest_worker_is_kept_without_those_that_lead() -> None:
    effect = found(Processes())
    assert effect.with_s == pytest.approx((3.0,) * 3)
    assert effect.without_s == (3.5,) * 3


def test_what_fails_here_costs_no_result() -> None:
    class Failing(Processes):
        def answer(self, job, per_worker_args, stage):
            if job is unobserved_steps:
                raise CaseError("worker-died", "worker 1 is gone; go on with --resume", stage="collect")
            return super().answer(job, per_worker_args, stage)

    assert found(Failing()) == ObserverEffect(why_none="a window failed: worker 1 is gone", failed=True)


def test_an_unobserved_loop_makes_all_steps_and_times_those_after_the_lead(monkeypatch) -> None:
    clock = iter([10.0, 16.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    fed: list[int] = []
    feeds = [[np.array(k)] for k in range(4)]
    seconds = seconds_unobserved(
        lambda batch: fed.append(int(batch[0])), in_turn(feeds, 3), n_steps=3, n_lead=2
    )
    assert fed == [3, 0, 1, 2, 3]
    assert seconds == pytest.approx(2.0)
