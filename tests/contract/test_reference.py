"""Concurrent runs of the reference and the strategy's own steps, and the report if one fails."""

import threading

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(240)]
pytest.importorskip("tensorflow")

from cases import Case, Cases

from harness.errors import UsageError
from harness.verification.verification import Reference
from harness.verification.worker.check import check
from harness.verification.worker.in_process import InProcessCluster
from harness.verification.worker.rounding import PLAIN
from harness.verification.worker.shard_steps import ShardSteps
from harness.worker.session.session import WorkerSession


@pytest.fixture
def stateless(cases: Cases) -> Case:
    return cases.of("digits-mlp", "momentum")


def test_shards_that_leave_nothing_behind_are_taken_two_at_a_time(
    stateless: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, meeting = WorkerSession.run, threading.Barrier(2, timeout=120)

    def run(*args, **kwargs):
        meeting.wait()
        return plain(*args, **kwargs)

    with ShardSteps(stateless.step, stateless.initial, stateless.topology((2, 2))) as steps:
        steps.begin(PLAIN)
        alone = steps.crossing(stateless.batches[0])
        monkeypatch.setattr(WorkerSession, "run", run)
        together = steps.crossing(stateless.batches[0])
    assert together[0] == alone[0]
    for name, (values, _) in alone[1].items():
        assert (together[1][name][0] == values).all()


@pytest.mark.parametrize("model", ["keras-classifier", "adversarial"])
def test_shards_that_change_state_are_taken_alone(
    cases: Cases, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    case = cases.model(model)
    plain, one = WorkerSession.run, threading.Lock()

    def run(*args, **kwargs):
        assert one.acquire(blocking=False), "another shard is on its way"
        try:
            return plain(*args, **kwargs)
        finally:
            one.release()

    with ShardSteps(case.step, case.initial, case.topology((1, 1))) as steps:
        steps.begin(PLAIN)
        steps.crossing(case.batches[0])
        monkeypatch.setattr(WorkerSession, "run", run)
        steps.crossing(case.batches[0])


def test_what_one_shard_raises_is_raised(stateless: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, n_asked = WorkerSession.run, []

    def run(*args, **kwargs):
        n_asked.append(1)
        if len(n_asked) == 2:
            raise FloatingPointError("of the second shard")
        return plain(*args, **kwargs)

    with ShardSteps(stateless.step, stateless.initial, stateless.topology((1, 1))) as steps:
        steps.begin(PLAIN)
        steps.crossing(stateless.batches[0])
        monkeypatch.setattr(WorkerSession, "run", run)
        with pytest.raises(FloatingPointError, match="of the second shard"):
            steps.crossing(stateless.batches[0])


def broken_reference() -> Reference:
    raise UsageError("the loss must be a mean", field="train_step")


@pytest.mark.parametrize("strategy_fails", [False, True])
def test_a_users_mistake_is_told_whatever_becomes_of_the_strategy(
    stateless: Case, monkeypatch: pytest.MonkeyPatch, strategy_fails: bool
) -> None:
    def step(*_):
        raise FloatingPointError("diverged")

    if strategy_fails:
        monkeypatch.setattr(InProcessCluster, "step", step)
    plan = stateless.plan("all-reduce", (1, 1))
    with pytest.raises(UsageError, match="must be a mean"):
        check(stateless.step, stateless.initial, plan, stateless.batches, broken_reference)


def test_a_strategy_that_fails_is_told_of_where_the_reference_does_not(
    stateless: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_, **__):
        raise FloatingPointError("no programs")

    monkeypatch.setattr(InProcessCluster, "step", run)
    plan, reference = stateless.plan("all-reduce", (1, 1)), stateless.reference((1, 1))
    with pytest.raises(FloatingPointError, match="no programs"):
        check(stateless.step, stateless.initial, plan, stateless.batches, lambda: reference)
