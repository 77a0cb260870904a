"""Steps that are made several in a run: their batches, times and losses."""

import itertools

import numpy as np
import pytest

from harness.worker.session.timed_loop import StepTimes, in_turn, run_loops, runs_of

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
