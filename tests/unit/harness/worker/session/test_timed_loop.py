"""Steps made one by one or several in a run: batches, times, losses, and faults of the process."""

import gc
import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from harness.worker.session import timed_loop
from harness.worker.session.timed_loop import ProcessFaults, StepTimes, in_turn, run_loops, run_steps, runs_of
from strategies.plan.faults import Fault

BATCHES = [[np.array([k])] for k in range(3)]


class Loop:
    """Takes runs of steps and gives the number of each batch as its loss."""

    def __init__(self) -> None:
        self.runs: list[list[int]] = []

    def steps(self, batches):
        numbers = [int(batch[0][0]) for batch in batches]
        self.runs.append(numbers)
        return np.array(numbers, np.float64)[:, np.newaxis]


def looped(loop: Loop, *, made_meanwhile: bool) -> StepTimes:
    batches = in_turn(BATCHES, 0)
    return run_loops(
        loop.steps, batches, n_steps=6, n_losses=1, steps_per_run=3, made_meanwhile=made_meanwhile
    )


@pytest.mark.parametrize(("n_steps", "runs"), [(4, [[1, 2], [0, 1]]), (3, [[1, 2], [0]]), (1, [[1]])])
def test_each_step_takes_the_next_batch_and_the_last_run_what_is_left(n_steps, runs):
    loop = Loop()
    times = run_loops(
        loop.steps, in_turn(BATCHES, 1), n_steps=n_steps, n_losses=1, steps_per_run=2, made_meanwhile=False
    )
    assert loop.runs == runs
    assert times.losses[:, 0].tolist() == [number for run in runs for number in run]


def test_steps_of_a_run_have_equal_shares_of_its_time_and_follow_each_other():
    loop = Loop()
    times = looped(loop, made_meanwhile=False)
    np.testing.assert_array_equal(times.start_s[1:], times.end_s[:-1])
    seconds = (times.end_s - times.start_s).reshape(2, 3)
    assert (seconds >= 0).all()
    np.testing.assert_allclose(seconds, seconds.mean(axis=1, keepdims=True) * np.ones(3), atol=1e-9)


def test_runs_of_batches_go_on_for_ever():
    runs = itertools.islice(runs_of(in_turn(BATCHES, 0), 2), 3)
    assert [[int(batch[0][0]) for batch in run] for run in runs] == [[0, 1], [2, 0], [1, 2]]


def test_the_wait_for_batches_that_are_made_meanwhile_is_part_of_their_steps():
    times = looped(Loop(), made_meanwhile=True)
    assert times.input_s is not None
    assert (times.input_s >= 0).all()
    assert (times.input_s <= times.end_s - times.start_s + 1e-9).all()
    assert looped(Loop(), made_meanwhile=False).input_s is None


def batches(n: int) -> list[list[npt.NDArray[np.int64]]]:
    return [[np.asarray([index])] for index in range(n)]


def staged_steps(step, feeds, *, n_steps: int, first: int = 0, n_losses: int = 1) -> StepTimes:
    return run_steps(step, in_turn(feeds, first), n_steps=n_steps, n_losses=n_losses, made_meanwhile=False)


def test_cycles_the_batches_from_the_numbered_step_on() -> None:
    seen: list[int] = []

    def step(feeds: Sequence[npt.NDArray[np.generic]]) -> list[float]:
        seen.append(int(feeds[0][0]))
        return [float(len(seen))]

    staged_steps(step, batches(3), n_steps=2)
    times = staged_steps(step, batches(3), n_steps=5, first=2)
    assert seen == [0, 1, 2, 0, 1, 2, 0]
    assert times.losses.tolist() == [[3.0], [4.0], [5.0], [6.0], [7.0]]


def test_steps_adjoin_and_times_rise() -> None:
    times = staged_steps(lambda feeds: [1.0, np.asarray(2.0)], batches(1), n_steps=4, n_losses=2)
    assert times.start_s.shape == times.end_s.shape == (4,)
    assert times.losses.shape == (4, 2)
    assert np.array_equal(times.start_s[1:], times.end_s[:-1])
    assert (times.end_s >= times.start_s).all()


def test_the_garbage_collector_rests_and_is_back_after_an_error() -> None:
    def step(feeds: Sequence[npt.NDArray[np.generic]]) -> list[float]:
        assert not gc.isenabled()
        raise KeyError("step")

    assert gc.isenabled()
    with pytest.raises(KeyError):
        staged_steps(step, batches(1), n_steps=1)
    assert gc.isenabled()


def test_nothing_befalls_a_worker_in_steps_that_others_have_made(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(timed_loop.time, "sleep", slept.append)
    passed = iter([False, True, True, False, False])
    slow = Fault(worker=0, kind="slow", delay_ms=100.0, from_step=1, to_step=4)
    faults = ProcessFaults(faults=[slow], passes=lambda: next(passed))
    results: list[int] = []
    step = faults.around(results.append)
    for number in range(5):
        step(number)
    # Steps are counted whether or not this worker makes them: the fault is in those from 1 to 3.
    assert results == [0, 1, 2, 3, 4]
    assert slept == [0.1]
    assert faults.n_made == 5


def test_how_long_the_last_step_was_delayed_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_loop.time, "sleep", lambda _: None)
    slow = Fault(worker=0, kind="slow", delay_ms=100.0, from_step=1, to_step=2)
    faults = ProcessFaults(faults=[slow, slow])
    step = faults.around(lambda: faults.waited_s)
    assert [step() for _ in range(3)] == [0.0, 0.2, 0.0]
