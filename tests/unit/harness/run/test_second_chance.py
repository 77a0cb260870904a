import dataclasses
from typing import Any, cast

import pytest

from harness.errors import CaseError
from harness.measure.collector import Measurement
from harness.provision.failures import REFUSED_STEP, Awaited, JobFailed, job_failed
from harness.run.case import CaseRun
from harness.run.repeats import with_second_chance
from harness.worker.process.messages import JobError

SEEN_TWICE = (
    "From /job:worker/replica:0/task:0:\nThe same RunGraph (Worker) request was received twice. "
    "step_id: 71 request_id: 42"
)
RUN = CaseRun(measurement=cast("Measurement", None), opened=(), equivalence=None, notes=("of its updates",))


def refused() -> CaseError:
    failed = JobError(type="AbortedError", message=SEEN_TWICE, traceback="")
    return job_failed(failed, Awaited(worker=1, what="run_steps", waited_s=1.0, log=None, stage="run"))


def attempts(*outcomes: CaseRun | CaseError) -> Any:
    left = list(outcomes)

    def attempt() -> CaseRun:
        outcome = left.pop(0)
        if isinstance(outcome, CaseError):
            raise outcome
        return outcome

    return attempt


def test_a_step_that_tensorflow_takes_for_an_old_one_is_a_failure_of_its_own() -> None:
    error = refused()
    assert isinstance(error, JobFailed)
    assert error.kind == REFUSED_STEP
    assert str(error).startswith(
        "worker 1: TensorFlow must take every step for a new one, and by chance took"
    )


def test_a_case_that_was_refused_runs_once_more_and_says_so() -> None:
    told: list[str] = []
    ran = with_second_chance(attempts(refused(), RUN), told.append)
    (note,) = told
    assert ran == dataclasses.replace(RUN, notes=("of its updates", note))
    assert note.startswith("run again on fresh processes")


def test_a_case_that_is_refused_twice_fails() -> None:
    with pytest.raises(CaseError) as caught:
        with_second_chance(attempts(refused(), refused(), RUN), [].append)
    assert caught.value.kind == REFUSED_STEP


def test_no_other_failure_gets_a_second_chance() -> None:
    died = CaseError("worker-died", "worker 1 died", stage="run")
    told: list[str] = []
    with pytest.raises(CaseError, match="worker 1 died"):
        with_second_chance(attempts(died, RUN), told.append)
    assert told == []
    assert with_second_chance(attempts(RUN), told.append) is RUN


def test_an_error_of_another_task_is_told_in_its_own_words() -> None:
    message = "From /job:worker/replica:0/task:1:\nFrom /job:worker/replica:0/task:0:\nit is closed\n\t [[n]]"
    failed = JobError(type="CancelledError", message=message, traceback="")
    error = job_failed(failed, Awaited(worker=1, what="run_steps", waited_s=1.0, log=None, stage="run"))
    assert str(error) == "worker 1: run_steps raised CancelledError: it is closed"
