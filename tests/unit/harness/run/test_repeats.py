"""Mistakes of a user: refused in one line if all cases share them, else recorded before workers start."""

import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness import pipeline
from harness.errors import UNSUPPORTED, CaseError, UsageError
from harness.experiment.cases import Case, expand
from harness.experiment.load import load_experiment, resolve
from harness.experiment.model import Measure
from harness.experiment.schedule import Slot, schedule
from harness.measure.timeouts import USUAL
from harness.provision.failures import USER_ERROR
from harness.provision.protocols import ClusterFacts
from harness.records.outcome import Equivalence
from harness.requests import RunOptions
from harness.run import repeats
from harness.run.open_case import CaseRun
from harness.run.progress import Progress
from harness.run.repeats import SlotRunner, require_evaluation
from harness.verification.checks import CaseChecks
from harness.verification.verification import BY_MORE_REFERENCES

OF_USER = CaseError(USER_ERROR, "mine.py:1: ValueError: of a user", stage="capture", field="workload")
OTHER = CaseError(USER_ERROR, "mine.py:2: ValueError: of a user", stage="capture", field="workload")
SKIPPED = CaseError(UNSUPPORTED, "no TPU", stage="plan")
DIED = CaseError("worker-died", "worker 0 died", stage="capture")
CASES = expand(
    resolve({"name": "x", "workloads": ["wide-mlp"], "strategies": ["single", "none", "ps", "all-reduce"]})
)


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_run_of_which_no_case_can_be_run_is_refused(tmp_path: Path, *, dry_run: bool) -> None:
    spec = load_experiment("quickstart", overrides={"strategies": ["tf-tpu"]})
    with pytest.raises(UsageError, match=r"^strategies: no case can be run: tf-tpu: .* device cpu") as caught:
        pipeline.run(spec, RunOptions(out=tmp_path / "out", dry_run=dry_run))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def runner_of(cases: Sequence[Case], **parts: object) -> SlotRunner:
    usual = dict.fromkeys(("spec", "folder", "cluster", "recorder", "captures", "exporter"))
    return SlotRunner(
        cases=cases,
        progress=Progress(4, live=False, quiet=False),
        timeouts=USUAL,
        **cast("Any", {**usual, **parts}),
    )


def slots_of(cases: Sequence[Case], *, repeats: int) -> Sequence[Slot]:
    return schedule(cases, repeats=repeats, seed=0, interleave=True, is_control=lambda case: False)


def prepare(monkeypatch: pytest.MonkeyPatch, *outcomes: CaseError | None, n_more: int = 0) -> None:
    """Prepare cases of a run, one for each outcome, beside others of another cluster."""
    of_case = dict(zip((case.id for case in CASES), outcomes, strict=False))

    def planned(_: object, case: Case) -> object:
        outcome = of_case[case.id]
        if outcome is not None:
            raise outcome
        return None, SimpleNamespace(warnings=())

    monkeypatch.setattr(repeats, "planned_to_run", planned)
    monkeypatch.setattr(CaseChecks, "reference", lambda *_: None)
    monkeypatch.setattr(CaseChecks, "bounded", lambda *_, **__: None)
    nothing = SimpleNamespace(limit_links=lambda _: None, batches=lambda *_: None)
    runner = runner_of(CASES[: len(outcomes) + n_more], cluster=nothing, captures=nothing)
    runner.prepare(slots_of(CASES[: len(outcomes)], repeats=2), deadline_s=math.inf)


@pytest.mark.parametrize("outcomes", [(OF_USER,), (OF_USER, OF_USER), (SKIPPED, OF_USER, OF_USER)])
def test_one_mistake_in_the_way_of_all_cases_is_told_once(
    monkeypatch: pytest.MonkeyPatch, outcomes: tuple[CaseError, ...]
) -> None:
    with pytest.raises(UsageError, match=r"^workload: mine\.py:1: ValueError: of a user$") as caught:
        prepare(monkeypatch, *outcomes)
    # For --debug.
    assert caught.value.__cause__ is OF_USER


@pytest.mark.parametrize(
    ("outcomes", "n_more"),
    [
        ((OF_USER, None), 0),
        ((OF_USER, OTHER), 0),
        ((OF_USER, DIED), 0),
        ((DIED, DIED), 0),
        ((SKIPPED, SKIPPED), 0),
        ((OF_USER, OF_USER), 1),
    ],
)
def test_others_are_recorded_case_by_case(
    monkeypatch: pytest.MonkeyPatch, outcomes: tuple[CaseError | None, ...], n_more: int
) -> None:
    prepare(monkeypatch, *outcomes, n_more=n_more)


CANNOT, CAN = (cast("Any", SimpleNamespace(facts=SimpleNamespace(evaluates=can))) for can in (False, True))


def test_an_evaluation_needs_a_workload_that_has_one() -> None:
    case = CASES[0]
    require_evaluation(CANNOT, case, Measure())
    require_evaluation(CAN, case, Measure(evaluate=True))
    with pytest.raises(CaseError, match=r"must be a workload with a method evaluate\(\)") as caught:
        require_evaluation(CANNOT, case, Measure(evaluate=True))
    assert (caught.value.kind, caught.value.stage) == (USER_ERROR, "plan")


def test_a_workload_that_cannot_be_evaluated_is_told_before_it_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(repeats, "planned_to_run", lambda *_: (CANNOT, None))
    runner = runner_of(
        CASES,
        spec=SimpleNamespace(measure=Measure(evaluate=True)),
        folder=SimpleNamespace(path=tmp_path, write_failure=lambda *_: None),
        # It opens no session.
        cluster=SimpleNamespace(facts=lambda: ClusterFacts(n_cores=1)),
        recorder=SimpleNamespace(failed=lambda slot, facts, error, *_: (slot.case, facts.pinned, error)),
    )
    failed = [cast("Any", ended.record) for _, ended in runner.run(slots_of(CASES, repeats=1))]
    assert len(failed) == len(CASES)
    assert {error.field for _, _, error in failed} == {"measure.evaluate"}
    assert {(case.shape.workers, pinned) for case, pinned, _ in failed} == {(1, True), (2, False)}


@pytest.mark.parametrize("doubted", [False, True])
def test_steps_in_doubt_are_judged_again(
    doubted: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong, right = Equivalence(checked=True, equivalent=False), Equivalence(checked=True, equivalent=True)
    monkeypatch.setattr(CaseChecks, "judged_again", lambda *_: right)
    monkeypatch.setattr(CaseChecks, "decided", lambda *args: args[-1])
    (slot, *_) = slots_of(CASES[2:3], repeats=1)
    repeat = SimpleNamespace(capture=None, plan=None)
    runner = runner_of(CASES, recorder=SimpleNamespace(verdict=lambda _: None))
    ran = CaseRun(
        measurement=cast("Any", None),
        opened=(),
        equivalence=wrong,
        doubt=cast("Any", "doubt") if doubted else None,
        notes=("first",),
    )
    decided = runner._decided(slot, cast("Any", repeat), ran, None)
    assert decided.equivalence == (right if doubted else wrong)
    assert decided.notes == (("first", BY_MORE_REFERENCES) if doubted else ("first",))
    assert decided.doubt is None
    assert ("by more references" in capsys.readouterr().err) is doubted
