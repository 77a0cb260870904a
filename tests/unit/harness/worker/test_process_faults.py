"""Faults of a worker's process: which steps they befall."""

import pytest

from harness.worker.session import timed_loop
from harness.worker.session.timed_loop import ProcessFaults
from strategies.plan.faults import Fault


def test_nothing_befalls_a_worker_in_steps_that_others_have_made(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(timed_loop.time, "sleep", slept.append)
    passed = iter([False, True, True, False, False])
    slow = Fault(worker=0, kind="slow", delay_ms=100.0, from_step=1, to_step=4)
    faults = ProcessFaults(faults=[slow], passes=lambda: next(passed))
    made: list[int] = []
    step = faults.around(made.append)
    for number in range(5):
        step(number)
    # Steps are counted whether or not this worker makes them: the fault is in those from 1 to 3.
    assert made == [0, 1, 2, 3, 4]
    assert slept == [0.1]
    assert faults.n_made == 5


def test_how_long_the_last_step_was_delayed_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_loop.time, "sleep", lambda _: None)
    slow = Fault(worker=0, kind="slow", delay_ms=100.0, from_step=1, to_step=2)
    faults = ProcessFaults(faults=[slow, slow])
    step = faults.around(lambda: faults.waited_s)
    assert [step() for _ in range(3)] == [0.0, 0.2, 0.0]
