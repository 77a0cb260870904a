"""The loop of updates, the steps that a late worker skips, and what runs beside a step."""

import threading

import numpy as np
import pytest

from harness.worker.session.update_loop import BesideStep, Pace, UpdateLoop

DEADLINE_S = 20.0


def test_updates_are_counted_by_their_contributions_until_the_session_ends():
    numbers, ended = iter([2, 1, 2]), threading.Event()
    drained = threading.Event()

    def update():
        number = next(numbers, None)
        if number is None:
            drained.set()
            assert ended.wait(DEADLINE_S)
            raise RuntimeError("the session was closed")
        return [np.int32(number)]

    loop = UpdateLoop(update, pytest.fail)
    loop.start()
    assert drained.wait(DEADLINE_S)
    loop.end()
    ended.set()
    loop.join()
    loop.check()
    assert loop.updates_by_size == {2: 2, 1: 1}
    assert loop.note() == "contributions per update: 1 with 1, 2 with 2"


def test_who_waits_for_contributions_goes_on_when_the_last_update_has_taken_them():
    numbers = iter([2, 1])
    awaited, ended = threading.Event(), threading.Event()

    def update():
        number = next(numbers, None)
        if number is None:
            assert ended.wait(DEADLINE_S)
            raise RuntimeError("the session was closed")
        assert awaited.wait(DEADLINE_S)
        return [np.int32(number)]

    loop = UpdateLoop(update, pytest.fail)
    loop.start()
    awaited.set()
    loop.wait_for(3)
    assert loop.updates_by_size == {2: 1, 1: 1}
    loop.end()
    ended.set()
    loop.join()


def test_who_waits_for_contributions_hears_of_a_failed_update():
    def update():
        raise ValueError("no update")

    loop = UpdateLoop(update, lambda: None)
    loop.start()
    with pytest.raises(ValueError, match="no update"):
        loop.wait_for(1)


def test_a_failed_update_ends_the_waits_and_is_raised_by_the_next_step():
    abandoned = threading.Event()

    def update():
        raise ValueError("no update")

    loop = UpdateLoop(update, abandoned.set)
    loop.start()
    assert abandoned.wait(DEADLINE_S)
    loop.join()
    with pytest.raises(ValueError, match="no update"):
        loop.check()


def test_a_late_worker_skips_the_steps_that_others_made():
    pace = Pace()
    results = []
    # Step come to and lateness after each step that it makes.
    progress = iter([(1, 0), (4, 1), (5, 0)])
    for _ in range(5):
        is_ahead = pace.is_ahead
        losses = pace.skipped()
        assert is_ahead == (losses is not None)
        if losses is None:
            results.append(len(results))
            losses = pace.record([np.float32(results[-1])], np.array(next(progress)))
        assert losses == [results[-1]]
    assert results == [0, 1, 2]
    assert (pace.dropped, pace.passed) == (1, 2)
    assert pace.note().startswith("contributions dropped as late: 1, steps skipped: 2")
    assert next(progress, None) is None


def test_it_runs_once_for_each_step_at_the_same_time():
    ready, runs = threading.Event(), []

    def run():
        runs.append(len(runs))
        ready.set()

    def step():
        assert ready.wait(60)
        ready.clear()
        return [1.0]

    beside = BesideStep(run, abandon=lambda: None)
    assert [beside.during(step) for _ in range(3)] == [[1.0]] * 3
    assert runs == [0, 1, 2]
    beside.end()


def test_its_failure_ends_a_step_that_waits_for_it():
    ended = threading.Event()

    def run():
        raise ConnectionError("a worker has gone")

    beside = BesideStep(run, abandon=ended.set)
    with pytest.raises(ConnectionError, match="a worker has gone"):
        beside.during(lambda: [ended.wait(60)])
    assert ended.is_set()
    beside.end()


def test_a_step_fails_by_itself():
    def step():
        raise ValueError("of the step")

    beside = BesideStep(threading.Event().is_set, abandon=lambda: None)
    with pytest.raises(ValueError, match="of the step"):
        beside.during(step)
    beside.end()
