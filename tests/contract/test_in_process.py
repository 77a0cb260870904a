"""Workers of one process: the first failure ends the waits of all others, and few runs load and read."""

import itertools

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(240)]
tf = pytest.importorskip("tensorflow")

from cases import Cases

from harness.verification.worker.check import run_references
from harness.verification.worker.in_process import InProcessCluster, programs_of
from harness.verification.worker.rounding import PLAIN
from harness.worker.session.named_session import NamedSession
from harness.worker.session.session import WorkerSession


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
        message = (
            "From /job:worker/replica:0/task:0:\nThe same RunGraph (Worker) request was received twice. 7"
        )
        raise tf.errors.AbortedError(None, None, message)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Each call of a session's `run`, as the number of values that it was fed."""
    seen: list[int] = []
    run = NamedSession.run

    def counted(session, fetches, feed, targets=()):
        seen.append(len(feed))
        return run(session, fetches, feed, targets)

    monkeypatch.setattr(NamedSession, "run", counted)
    return seen


@pytest.mark.parametrize("strategy", ["ps", "all-reduce", "partitioned-ps"])
def test_variables_are_loaded_and_read_in_one_run_a_worker(
    cases: Cases, strategy: str, runs: list[int]
) -> None:
    case = cases.of("digits-cnn", "adam")
    programs = programs_of(case.step, case.plan(strategy, (1, 1)))
    with InProcessCluster(programs, case.initial) as cluster:
        runs.clear()
        cluster.each(WorkerSession.load)
        loaded = list(runs)
        runs.clear()
        cluster.each(WorkerSession.read)
    of_workers = [len(p.variables) for p in programs if p.variables]
    assert sorted(loaded) == sorted(of_workers)
    assert max(of_workers) > 20
    assert runs == [0] * len(of_workers)


def test_a_reference_takes_no_more_runs_for_more_variables(cases: Cases, runs: list[int]) -> None:
    case, n_steps = cases.of("digits-cnn", "adam"), 2
    topology = case.topology((1, 1))
    list(run_references(case.step, case.initial, topology, case.batches[:n_steps], [PLAIN], eps=2.0**-52))
    of_a_step = 2 * len(["random state", "forward and backward", "random state after"]) + len(["update"])
    assert len(runs) == len(["load", "read"]) + n_steps * of_a_step + len(["read"])
