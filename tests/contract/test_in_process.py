"""Workers of one process: the first failure ends the waits of all others."""

import itertools

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(240)]
tf = pytest.importorskip("tensorflow")

from cases import Cases  # noqa: E402

from harness.worker.in_process import InProcessCluster, programs_of  # noqa: E402
from harness.worker.session_runner import WorkerSession  # noqa: E402


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("strategy", ["ps", "all-reduce"])
def test_the_first_failure_is_raised_while_others_wait(cases: Cases, strategy: str, failing: int) -> None:
    case = cases.of("digits-mlp", "momentum")
    images, labels = case.batches[0]

    def step(session: WorkerSession) -> None:
        program = session.program
        stop = program.stop - 1 if program.task == failing else program.stop
        session.step([images[program.start : program.stop], labels[program.start : stop]])

    programs = programs_of(case.step, case.plan(strategy, (1, 1)))
    raised = pytest.raises(tf.errors.InvalidArgumentError, match=f"task:{failing}")
    with InProcessCluster(programs, case.initial) as cluster, raised:
        cluster.each(step)


_runs = itertools.count()


@pytest.mark.filterwarnings("ignore:.* runs again")
def test_what_tensorflow_refuses_by_mistake_is_asked_again() -> None:
    if next(_runs) == 0:
        told = "From /job:worker/replica:0/task:0:\nThe same RunGraph (Worker) request was received twice. 7"
        raise tf.errors.AbortedError(None, None, told)
