"""Runs that a mistake leaves nothing of: refused in one line, in place of a line for each repeat."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness import pipeline
from harness.errors import UNSUPPORTED, CaseError, UsageError
from harness.experiment.cases import Case, expand
from harness.experiment.load import load_experiment, resolve
from harness.experiment.schedule import schedule
from harness.measure.timeouts import USUAL
from harness.provision.failures import USER_ERROR
from harness.requests import RunOptions
from harness.run import repeats
from harness.run.progress import Progress
from harness.run.repeats import SlotRunner
from harness.verification.checks import CaseChecks

OF_USER = CaseError(USER_ERROR, "mine.py:1: ValueError: of a user", stage="capture", field="workload")
OTHER = CaseError(USER_ERROR, "mine.py:2: ValueError: of a user", stage="capture", field="workload")
SKIPPED = CaseError(UNSUPPORTED, "no TPU", stage="plan")
DIED = CaseError("worker-died", "worker 0 died", stage="capture")


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_run_of_which_no_case_can_be_run_is_refused(tmp_path: Path, *, dry_run: bool) -> None:
    spec = load_experiment("quickstart", overrides={"strategies": ["tf-tpu"]})
    with pytest.raises(UsageError, match=r"^strategies: no case can be run: tf-tpu: .* device cpu") as caught:
        pipeline.run(spec, RunOptions(out=tmp_path / "out", dry_run=dry_run))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def prepare(monkeypatch: pytest.MonkeyPatch, *outcomes: CaseError | None, n_more: int = 0) -> None:
    """Prepare cases of a run, one for each outcome, beside others of another cluster."""
    strategies = ["single", "none", "ps", "all-reduce"]
    cases = expand(resolve({"name": "x", "workloads": ["wide-mlp"], "strategies": strategies}))
    of_case = dict(zip((case.id for case in cases), outcomes, strict=False))

    def planned(_: object, case: Case) -> object:
        outcome = of_case[case.id]
        if outcome is not None:
            raise outcome
        return None, SimpleNamespace(warnings=())

    monkeypatch.setattr(repeats, "planned_to_run", planned)
    monkeypatch.setattr(CaseChecks, "reference", lambda *_: None)
    monkeypatch.setattr(CaseChecks, "bounded", lambda *_, **__: None)
    nothing = cast("Any", SimpleNamespace(limit_links=lambda _: None, batches=lambda *_: None))
    runner = SlotRunner(
        spec=cast("Any", None),
        cases=cases[: len(outcomes) + n_more],
        folder=cast("Any", None),
        cluster=nothing,
        recorder=cast("Any", None),
        captures=nothing,
        progress=Progress(4, live=False, quiet=False),
        exporter=None,
        timeouts=USUAL,
    )
    slots = schedule(
        cases[: len(outcomes)], repeats=2, seed=0, interleave=True, is_control=lambda case: False
    )
    runner.prepare(slots, deadline_s=math.inf)


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
