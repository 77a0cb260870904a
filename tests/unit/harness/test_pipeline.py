"""A budget that no case can keep to is refused; a run whose report cannot be written still has its table."""

import errno
from pathlib import Path

import pytest
from synthetic_run import Case, write_run

from harness import pipeline
from harness.errors import UsageError
from harness.experiment.load import resolve
from harness.records.run_documents import read_environment, read_experiment, read_head
from harness.records.run_folder import RunFolder, open_run
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


def test_rivals_that_need_one_worker_are_skipped_on_two_with_the_reason() -> None:
    document = {"name": "x", "workloads": ["digits-mlp"], "cluster": {"workers": [1, 2]}}
    spec = resolve({**document, "strategies": ["ps", "tf-mirrored"]})
    outcome = pipeline.run(spec, RunOptions(dry_run=True))
    assert [case.shape.workers for case in outcome.cases if case.id in outcome.skipped] == [2]
    (note,) = outcome.notes
    assert note.startswith(
        "will be skipped: tf-mirrored: keeps replicas within one process, got 2 workers; use workers=1"
    )


@pytest.mark.parametrize(("number", "status"), [(errno.ENOSPC, 3), (errno.EACCES, 2)])
def test_a_report_that_cannot_be_written_costs_a_line_and_not_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, status: int
) -> None:
    def refused(*_: object) -> None:
        raise OSError(number, "not now")

    path = write_run(tmp_path / "run", [Case(workload="w", strategy="ps")])
    head = read_head(path)
    with open_run(
        path,
        experiment=read_experiment(path, head),
        environment=read_environment(path, head),
        resume=True,
    ) as folder:
        monkeypatch.setattr(RunFolder, "write_report", refused)
        outcome = pipeline.outcome_of(folder, pipeline._write_report(folder))
    assert outcome.report is not None
    assert outcome.report.text
    assert outcome.exit_status == status
    assert outcome.to_document()["report"] is None
    line = (
        f"no report: {path} cannot be written: not now; make room and write it by `stratbench report {path}`"
    )
    assert outcome.notes[-1] == line
