"""A budget that no case can keep to is refused; a run whose report cannot be written still has its table."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest
from open_folders import made_record
from synthetic_run import Case, write_run

from harness import pipeline
from harness.cli.commands.run import planned_table
from harness.errors import Interrupted, UsageError
from harness.experiment.cases import expand
from harness.experiment.load import resolve
from harness.experiment.schedule import Slot
from harness.pipeline import RunOutcome
from harness.records.outcome import Failure
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


STEPS = {"measure": {"repeats": 2}, "strategies": ["single", "ps"], "workloads": ["digits-mlp"]}


def planned_in(folder: Path, *, resume: bool = True) -> RunOutcome:
    return pipeline.run(resolve({"name": "x", **STEPS}), RunOptions(dry_run=True, out=folder, resume=resume))


def test_a_dry_run_counts_the_repeats_left_in_its_folder_and_changes_nothing(tmp_path: Path) -> None:
    spec = resolve({"name": "x", **STEPS})
    single, ps = expand(spec)
    failure = Failure(type="worker-died", message="it died", stage="run")
    with open_run(tmp_path, experiment=spec.to_document(), environment={}) as folder:
        for record in (
            made_record(single.id, run=folder.run),
            made_record(single.id, 1, run=folder.run),
            made_record(ps.id, run=folder.run),
            made_record(ps.id, 1, run=folder.run, status="failed", error=failure),
        ):
            folder.append(record)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    outcome = planned_in(tmp_path)
    assert [outcome.n_left(case) for case in outcome.cases] == [0, 1]
    assert (outcome.notes, outcome.to_document()["planned"]) == ((), [ps.id])
    table = planned_table(outcome)
    assert [row[-1] for row in table.rows] == ["done", "1"]
    assert table.total == "2 cases, 2 repeats of each, 3 done: 1 to run"
    with pytest.raises(UsageError, match="is not empty; add --resume"):
        planned_in(tmp_path, resume=False)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_folder_in_use_is_refused_by_a_dry_run_too(tmp_path: Path) -> None:
    with (
        open_run(tmp_path, experiment={"name": "x"}, environment={}),
        pytest.raises(UsageError, match="in use by another run"),
    ):
        planned_in(tmp_path)


def test_nothing_to_resume_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "missing"
    note = f"nothing to resume in {missing}: beginning a new run"
    assert planned_in(missing).notes == (note,)
    assert planned_in(missing, resume=False).notes == ()
    assert not missing.exists()
    spec = resolve({"name": "x", **STEPS})
    options = RunOptions(out=missing, resume=True)
    with open_run(missing, experiment=spec.to_document(), environment={}) as folder:
        pipeline._carry_out([], expand(spec), spec, options, folder, None)
    assert note in capsys.readouterr().err


def test_an_interrupt_during_the_report_names_the_command_that_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "_write_report", interrupted)
    spec = resolve({"name": "x", **STEPS})
    with (
        open_run(tmp_path, experiment=spec.to_document(), environment={}) as folder,
        pytest.raises(Interrupted, match=f"results are kept, .* `stratbench report {tmp_path}`"),
    ):
        pipeline._carry_out([], expand(spec), spec, RunOptions(), folder, None)


@pytest.mark.parametrize(("strategy", "dropped"), [("ps", {"ps"}), ("none", {"none", "ps", "all-reduce"})])
def test_predictions_of_outdated_cases_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, dropped: set[str]
) -> None:
    spec = resolve({"name": "x", **STEPS, "strategies": ["none", "ps", "all-reduce"]})
    cases = expand(spec)
    by_case = {case.id: case.strategy.name for case in cases}
    outdated = [made_record(case, strategy=name) for case, name in by_case.items() if name == strategy]
    monkeypatch.setattr(pipeline, "_outdated", lambda *_: tuple(outdated))
    calls: list[set[str]] = []
    monkeypatch.setattr(pipeline, "drop_predictions", lambda _, own: calls.append({by_case[c] for c in own}))
    with open_run(tmp_path, experiment=spec.to_document(), environment={}) as folder:
        for record in outdated:
            folder.append(record)
        pipeline._carry_out([], cases, spec, RunOptions(), folder, None)
    assert calls == [dropped]


def test_only_a_run_with_all_repeats_is_predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases of a resumed run that have a prediction would keep it, made from fewer profiles."""
    paths: list[Path] = []

    def note(path: Path) -> str:
        paths.append(path)
        return ""

    monkeypatch.setattr(pipeline, "predict_measured", note)
    monkeypatch.setattr(pipeline, "run_slots", lambda *_: None)
    spec = resolve({"name": "x", **STEPS})
    cases = expand(spec)
    slots = [Slot(order=0, block=0, repeat=0, case=case) for case in cases[:1]]
    late = made_record(cases[0].id, error=Failure(type="time-budget", message="m", stage="run"))
    with open_run(tmp_path, experiment=spec.to_document(), environment={}) as folder:
        folder.append(replace(late, status="skipped"))
        pipeline._carry_out(slots, cases, spec, RunOptions(), folder, None)
        assert paths == []
        folder.append(made_record(cases[0].id))
        pipeline._carry_out(slots, cases, spec, RunOptions(), folder, None)
        assert paths == [tmp_path]


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
        outcome = pipeline.outcome_of(folder, pipeline._write_report(folder, is_complete=True))
    assert outcome.report is not None
    assert outcome.report.text
    assert outcome.exit_status == status
    assert outcome.to_document()["report"] is None
    line = (
        f"no report: {path} cannot be written: not now; make room and write it by `stratbench report {path}`"
    )
    assert outcome.notes[-1] == line
