"""Cases that take their windows in turn, and what happens to the others when one of them fails."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.errors import CaseError, StoreError
from harness.experiment.model import NO_FAULTS, Measure
from harness.measure.timeouts import USUAL
from harness.provision.failures import REFUSED_STEP, Awaited, WorkerFailure, failure_of
from harness.records.outcome import Rounds
from harness.run import block
from harness.run.block import Block, BlockResults
from harness.run.open_case import CaseRun
from harness.worker.process.messages import Died, JobError

STEP_ID_COLLISION = (
    "From /job:worker/replica:0/task:0:\nThe same RunGraph (Worker) request was received twice. "
    "step_id: 71 request_id: 42"
)
OOM_ON_GPU = (
    "OOM when allocating tensor with shape[8,8] and type float on "
    "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc"
)
MEASURE = Measure(warmup_steps=0, steps=40, repeats=1, interleave=True, seed=0, batch="global", rounds=4)
RUN = CaseRun(measurement=cast("Any", SimpleNamespace(n_steps=48)), opened=(), equivalence=None)


def refused() -> CaseError:
    failed = JobError(type="AbortedError", message=STEP_ID_COLLISION, traceback="")
    return failure_of(failed, Awaited(worker=1, what="run_steps", waited_s=1.0, log=None, stage="run"))


def died() -> CaseError:
    cause = Died(what="process", exit_code=1)
    return WorkerFailure("worker-died", "worker 1 died", stage="run", worker=1, cause=cause)


def crowded() -> CaseError:
    failed = JobError.of(ResourceExhaustedError(OOM_ON_GPU))
    return failure_of(failed, Awaited(worker=0, what="run_steps", waited_s=1.0, log=None, stage="run"))


class ResourceExhaustedError(Exception):
    """Error with the name of TensorFlow's, by which it is recognised."""


class Cases:
    """Stands in for `OpenCase`: each call of a case takes the next thing that the test has for it."""

    def __init__(self, left_bytes: Sequence[dict[str, int]] = ()) -> None:
        self.windows: dict[str, list[float | Exception]] = {}
        self.opens: dict[str, list[Exception]] = {}
        self.log: list[tuple[str, str]] = []
        self.left_bytes = list(left_bytes)
        self.alive: set[str] = set()

    def __call__(self, cluster: object, repeat: Any, measure: Measure, timeouts: object) -> Any:
        name = repeat.case.id
        return SimpleNamespace(
            repeat=repeat,
            window_shape=(10, 2),
            open=lambda: self._open(name),
            window=lambda: self._window(name),
            finish=lambda: RUN,
            discard_windows=lambda n_windows=None: self.log.append(("discard", name)),
            memory_left_bytes=lambda: self.left_bytes.pop(0) if self.left_bytes else {},
            require_saved=lambda: None,
            close=lambda: self.alive.discard(name),
        )

    def _open(self, name: str) -> None:
        self.log.append(("open", name))
        for error in self.opens.get(name, [])[:1]:
            self.opens[name].pop(0)
            raise error
        self.alive.add(name)

    def _window(self, name: str) -> float:
        self.log.append(("window", name))
        assert name in self.alive
        outcome = self.windows[name].pop(0) if self.windows.get(name) else 1.0
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


@pytest.fixture
def cases(monkeypatch: pytest.MonkeyPatch) -> Cases:
    stand_in = Cases()
    monkeypatch.setattr(block, "OpenCase", stand_in)
    return stand_in


BASELINE_FIRST = next(number for number in (0, 1) if not block.opens_second(MEASURE.seed, number))


def repeat_of(name: str, number: int = BASELINE_FIRST) -> Any:
    case = SimpleNamespace(scenario=NO_FAULTS, id=name, title=f"w {name} 2x1")
    return SimpleNamespace(case=case, first=0, number=number)


def run(
    *names: str,
    baseline: str | None = None,
    beside: str | None = None,
    notify: Callable[[str], None] = lambda _: None,
    seen: list[tuple[str, float, int]] | None = None,
    number: int = BASELINE_FIRST,
) -> BlockResults:
    messages = [] if seen is None else seen
    blocked = Block(
        cluster=cast("Any", None),
        measure=MEASURE,
        timeouts=USUAL,
        baseline=baseline,
        beside=None if beside is None else repeat_of(beside),
        doing=lambda _: None,
        notify=notify,
        see=lambda case, step_s, number: messages.append((case.repeat.case.id, step_s, number)),
    )
    return blocked.run([repeat_of(name, number) for name in names], seed="0")


def rounds_of(results: BlockResults, name: str) -> Rounds:
    rounds = results.runs[name].rounds
    assert rounds is not None
    return rounds


def test_a_step_that_tensorflow_takes_for_an_old_one_is_a_failure_of_its_own() -> None:
    error = refused()
    assert isinstance(error, WorkerFailure)
    assert error.kind == REFUSED_STEP
    assert str(error).startswith("worker 1: TensorFlow mistook a step")


def test_all_are_open_before_the_first_window_and_take_one_in_each_round(cases: Cases) -> None:
    results = run("a", "b", "c", baseline="b")
    assert cases.log[:3] == [("open", "b"), ("open", "a"), ("open", "c")]
    names = [name for what, name in cases.log[3:]]
    assert len(names) == 3 * 4
    assert all(sorted(names[start : start + 3]) == ["a", "b", "c"] for start in range(0, 12, 3))
    assert rounds_of(results, "a").step_s == (1.0,) * 4
    assert len({rounds_of(results, name).block for name in "abc"}) == 1
    assert (rounds_of(results, "a").baseline, rounds_of(results, "b").baseline) == ("b", None)
    assert cases.alive == set()


def test_a_baseline_is_opened_second_in_one_of_two_repeats(cases: Cases) -> None:
    run("a", "b", "c", baseline="b", number=1 - BASELINE_FIRST)
    assert cases.log[:3] == [("open", "a"), ("open", "b"), ("open", "c")]
    places = [[block.opens_second(seed, number) for number in range(20)] for seed in range(20)]
    assert all(of_seed[n] != of_seed[n + 1] for of_seed in places for n in range(0, 20, 2))
    assert len(set(map(tuple, places))) > 1


def test_a_case_that_fails_has_its_round_taken_again_by_the_others(cases: Cases) -> None:
    cases.windows |= {"a": [1.0, 2.0, 3.0, 4.0, 5.0], "b": [2.0, died()], "c": [1.0, 2.0, 3.0, 4.0, 5.0]}
    results = run("a", "b", "c")
    assert set(results.runs) == {"a", "c"}
    assert str(results.errors["b"]) == "worker 1 died"
    order = [name for what, name in cases.log if what == "window"][3:6]
    assert [name for what, name in cases.log if what == "discard"] == order[: order.index("b")]
    for name in ("a", "c"):
        second = () if name in order[: order.index("b")] else (2.0,)
        assert rounds_of(results, name).step_s == (1.0, *second, 3.0, 4.0, *(() if second else (5.0,)))


def test_a_failed_baseline_is_opened_once_more(cases: Cases) -> None:
    cases.windows["b"] = [2.0, died(), 3.0, 3.0]
    messages: list[str] = []
    results = run("a", "b", baseline="b", notify=messages.append)
    assert rounds_of(results, "b").step_s == (3.0, 3.0, 1.0, 1.0)
    assert rounds_of(results, "a").baseline_step_s == (3.0, 3.0, 1.0, 1.0)
    (note,) = results.runs["b"].notes
    assert messages == [f"w b 2x1: {note}"]
    assert note == "run again on fresh processes, because ratios need the baseline: worker 1 died"


def test_a_baseline_that_fails_twice_leaves_levels_without_ratios(cases: Cases) -> None:
    cases.windows["b"] = [7.0, died(), died()]
    results = run("a", "b", baseline="b")
    assert set(results.errors) == {"b"}
    assert rounds_of(results, "a").step_s == (1.0,) * 4
    assert rounds_of(results, "a").baseline_step_s == ()


def test_rounds_of_processes_that_were_replaced_count_for_nobody(cases: Cases) -> None:
    cases.windows["b"] = [1.0, 1.0, 1.0, died(), 9.0]
    results = run("a", "b", baseline="b")
    assert rounds_of(results, "b").step_s == (9.0, 1.0, 1.0, 1.0)
    assert ("discard", "a") in cases.log
    assert [what for what, name in cases.log if name == "b"].count("window") == 8


def test_a_block_in_which_nothing_opens_ends(cases: Cases) -> None:
    cases.opens |= {"a": [died()], "b": [died(), died()]}
    assert set(run("a", "b").errors) == {"a", "b"}


def test_cases_that_lost_a_worker_to_another_one_are_opened_once_more(cases: Cases) -> None:
    cases.windows |= {"a": [died()], "b": [died()], "c": [died(), died()]}
    results = run("a", "b", "c")
    lost_first = next(name for what, name in cases.log if what == "window")
    assert set(results.errors) == {lost_first, "c"}


@pytest.mark.parametrize("when", ["open", "window"])
def test_a_step_refused_by_chance_has_its_case_opened_once_more(cases: Cases, when: str) -> None:
    (cases.opens if when == "open" else cases.windows)["a"] = [refused()]  # type: ignore[index]
    results = run("a", "b")
    (note,) = results.runs["a"].notes
    assert note.startswith("run again on fresh processes, because TensorFlow rejected a step by mistake")
    assert results.runs["b"].notes == ()


def test_a_case_that_is_refused_twice_fails(cases: Cases) -> None:
    cases.opens["a"] = [refused(), refused()]
    assert run("a", "b").errors["a"].kind == REFUSED_STEP


@pytest.mark.parametrize("place", ["host", "GPU-0"])
def test_what_memory_does_not_hold_is_left_for_later(cases: Cases, place: str) -> None:
    roomy = {"host": 10**9, "GPU-0": 10**9}
    cases.left_bytes = [roomy | {place: n_bytes} for n_bytes in (10_000, 6_000, 1_000)]
    results = run("a", "b", "c", "d", baseline="c")
    assert list(results.runs) == ["c", "a"]
    assert results.postponed == ("b", "d")
    cases.left_bytes = [roomy | {place: n_bytes} for n_bytes in (100_000, 90_000, 80_000, 70_000)]
    assert run("a", "b", "c", "d").postponed == ()


def test_gpus_of_different_workers_are_looked_at_apart(cases: Cases) -> None:
    """A case of one worker has another GPU than the next one."""
    cases.left_bytes = [{"GPU-0": 9_000}, {"GPU-1": 1_000}, {"GPU-0": 8_000, "GPU-1": 1_000}]
    assert run("a", "b", "c").postponed == ()


@pytest.mark.parametrize("when", ["open", "window"])
def test_what_a_gpu_does_not_hold_beside_others_is_left_for_later(cases: Cases, when: str) -> None:
    (cases.opens if when == "open" else cases.windows)["b"] = [crowded()]  # type: ignore[index]
    notes: list[str] = []
    results = run("a", "b", "c", baseline="a", notify=notes.append)
    assert (set(results.runs), results.errors, results.postponed) == ({"a", "c"}, {}, ("b",))
    assert notes == ["w b 2x1: runs later, because GPU memory was too small next to other cases"]
    assert len(rounds_of(results, "c").step_s) == MEASURE.rounds
    assert cases.alive == set()


@pytest.mark.parametrize("when", ["open", "window"])
def test_what_a_gpu_does_not_hold_beside_the_baseline_is_measured_alone(cases: Cases, when: str) -> None:
    (cases.opens if when == "open" else cases.windows)["b"] = [crowded()]  # type: ignore[index]
    results = run("b", beside="s")
    assert (set(results.runs), results.errors, results.postponed) == ({"b"}, {}, ())
    (note,) = results.runs["b"].notes
    assert note == "run again on fresh processes, because GPU memory was too small next to the baseline"
    rounds = rounds_of(results, "b")
    assert (len(rounds.step_s), rounds.baseline_step_s) == (MEASURE.rounds, ())


@pytest.mark.parametrize("beside", [None, "s"])
def test_what_a_gpu_does_not_hold_alone_fails(cases: Cases, beside: str | None) -> None:
    cases.opens["a"] = [crowded(), crowded()]
    results = run("a", beside=beside)
    assert {name: error.kind for name, error in results.errors.items()} == {"a": "out-of-memory"}
    assert results.postponed == ()


def test_a_case_that_a_gpu_does_not_hold_leaves_the_others(cases: Cases) -> None:
    """The first of all has the GPU to itself, so that it fails for good."""
    cases.opens["a"] = [crowded()]
    results = run("a", "b", "c")
    assert (set(results.errors), set(results.runs)) == ({"a"}, {"b", "c"})


def test_a_baseline_beside_a_block_is_timed_and_has_no_result_there(cases: Cases) -> None:
    cases.windows["s"] = [5.0] * 4
    seen: list[tuple[str, float, int]] = []
    results = run("a", "b", beside="s", seen=seen)
    assert sorted(seen) == [(name, 1.0, number) for name in "ab" for number in (1, 2, 3, 4)]
    assert set(results.runs) == {"a", "b"}
    assert results.errors == {}
    assert (rounds_of(results, "a").baseline, rounds_of(results, "a").baseline_step_s) == ("s", (5.0,) * 4)


def test_our_own_mistake_fails_one_case_and_a_full_disk_ends_the_run(cases: Cases) -> None:
    cases.windows["a"] = [ZeroDivisionError("oh")]
    results = run("a", "b")
    assert results.errors["a"].kind == "internal-error"
    assert set(results.runs) == {"b"}
    cases.windows["a"] = [StoreError("no space")]
    with pytest.raises(StoreError):
        run("a", "b")
    assert cases.alive == set()


def test_an_error_of_another_task_is_told_in_its_own_words() -> None:
    message = "From /job:worker/replica:0/task:1:\nFrom /job:worker/replica:0/task:0:\nit is closed\n\t [[n]]"
    failed = JobError(type="CancelledError", message=message, traceback="")
    error = failure_of(failed, Awaited(worker=1, what="run_steps", waited_s=1.0, log=None, stage="run"))
    assert str(error) == "worker 1: run_steps raised CancelledError: it is closed"


def test_rounds_of_a_baseline_that_is_gone_pair_with_no_later_ones(cases: Cases) -> None:
    again = [refused()]
    one_more = cases._window

    def window(name: str) -> float:
        if name == "a" and "base" not in cases.alive and again:
            raise again.pop()
        return one_more(name)

    cases._window = window  # type: ignore[method-assign]
    # It takes one round with the others between its two failures.
    cases.windows = {"base": [refused(), 1.0, died()]}
    results = run("base", "a", "b", baseline="base")
    assert not again
    assert set(results.errors) == {"base"}
    for name in ("a", "b"):
        assert len(rounds_of(results, name).step_s) == MEASURE.n_rounds
        assert not rounds_of(results, name).baseline_step_s
