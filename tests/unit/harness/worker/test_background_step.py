import threading

import pytest

from harness.worker.session.update_loop import BesideStep


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
