"""A time budget that no case can keep to is refused before anything is made."""

import pytest

from harness import pipeline
from harness.errors import UsageError
from harness.experiment.load import resolve
from harness.requests import RunOptions


def planned(window_s: float, budget_s: float | None) -> int:
    document = {"name": "x", "workloads": ["digits-mlp"], "measure": {"window_s": window_s, "rounds": 10}}
    spec = resolve({**document, "strategies": ["none", "ps"]})
    return len(pipeline.run(spec, RunOptions(dry_run=True, time_budget_s=budget_s)).cases)


def test_windows_that_take_longer_are_refused() -> None:
    with pytest.raises(UsageError, match=r"time-budget: must hold one case's windows .* 10 of 7 s, got 60 s"):
        planned(7.0, 60.0)


@pytest.mark.parametrize(("window_s", "budget_s"), [(6.0, 60.0), (7.0, None)])
def test_others_are_planned(window_s: float, budget_s: float | None) -> None:
    assert planned(window_s, budget_s) == 2
