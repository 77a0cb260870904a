"""Predictions of a run's own cases, from hand-made profiles and costs."""

from dataclasses import replace
from pathlib import Path

import pytest
from planned_steps import BATCH, STEP, profile
from synthetic_run import NONE, SINGLE, Case, write_run
from test_predictions import PROBE

from harness import pipeline
from harness.errors import UsageError
from harness.experiment.chosen_strategy import choose
from harness.prediction import measured_cases
from harness.prediction.measured_cases import measured_case_predictions
from harness.prediction.observations import profiled_workloads
from harness.prediction.predictions import planned_for, simulated
from harness.prediction.profile import StoredProfile
from harness.prediction.timelines import timelines
from harness.records.run_documents import PREDICTIONS, PROFILE
from harness.records.stored_run import StoredRun, load_run

SHAPE = {"workload": "w", "batch_size": BATCH, "p50_s": 0.02, "cpu_s": 0.02}
CONTROL = Case(**{**SHAPE, **NONE})
CASES = [
    Case(**SHAPE, **SINGLE),
    CONTROL,
    Case(**SHAPE, strategy="all-reduce"),
    Case(**SHAPE, strategy="ps"),
    Case(**SHAPE, strategy="tf-multi-worker-mirrored"),
    Case(**SHAPE, strategy="ps", link_mbit=(100.0, 1000.0)),
    Case(**SHAPE, strategy="fully-sharded", faults=("worker 1: slow",)),
]


def with_profile(run_dir: Path) -> StoredRun:
    """A run whose control has a profile, as it is written after its first repeat."""
    import json

    run = load_run(run_dir)
    for record in run.records:
        if record.control or record.strategy == "none":
            own = profile(compute_s=0.018, update_s=0.002, examples=BATCH // 2)
            document = StoredProfile(step=STEP, profile=own).to_document()
            path = run.repeat_dir(record) / PROFILE
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(document))
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    return with_profile(write_run(tmp_path_factory.mktemp("own") / "run", CASES, n_repeats=1))


@pytest.fixture(scope="module")
def probe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("probes") / "probe.json"
    PROBE.write(path)
    return path


def test_each_case_with_exchanges_and_a_plan_is_predicted(run: StoredRun, probe_file: Path) -> None:
    predictions = measured_case_predictions(run, lambda _: probe_file)
    strategies = {record.case: record.strategy for record in run.records}
    assert sorted(strategies[case] for case in predictions) == ["all-reduce", "ps"]
    for prediction in predictions.values():
        assert prediction.question.batch_size == BATCH
        assert 0.02 < prediction.step_s < 0.2


def test_what_is_stored_is_not_predicted_again(run: StoredRun, probe_file: Path) -> None:
    first = next(iter(measured_case_predictions(run, lambda _: probe_file)))
    stored = replace(run, predictions={first: None})
    assert first not in measured_case_predictions(stored, lambda _: probe_file)


def test_without_a_probe_the_way_to_one_is_stated(run: StoredRun, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="this machine has no probe; `stratbench probe` makes one"):
        measured_case_predictions(run, lambda machine: tmp_path / machine.name)


def test_a_run_stores_its_predictions_once(
    tmp_path: Path, probe_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = with_profile(write_run(tmp_path / "run", CASES, n_repeats=1))
    assert "stratbench probe" in pipeline.predict_measured(run.path)
    assert not (run.path / PREDICTIONS).exists()
    monkeypatch.setattr(pipeline, "_probe_file", lambda _: probe_file)
    assert pipeline.predict_measured(run.path) == ""
    assert len(load_run(run.path).predictions) == 2
    before = (run.path / PREDICTIONS).read_bytes()
    PROBE.write(probe_file)
    assert pipeline.predict_measured(run.path) == ""
    assert (run.path / PREDICTIONS).read_bytes() == before


def test_a_run_without_a_profile_says_how_to_get_one(
    tmp_path: Path, probe_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "_probe_file", lambda _: probe_file)
    path = write_run(tmp_path / "run", CASES, n_repeats=1)
    assert "run it with the strategy none" in pipeline.predict_measured(path)


def test_no_error_of_a_prediction_reaches_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("in a bug")

    monkeypatch.setattr(pipeline, "measured_case_predictions", broken)
    assert pipeline.predict_measured(write_run(tmp_path / "run", CASES, n_repeats=1)) == "in a bug"


def test_cases_of_the_run_have_timelines(run: StoredRun, probe_file: Path) -> None:
    workloads = profiled_workloads(run)
    steps = {t.strategy: t for t in timelines(run, workloads, (), PROBE)}
    assert set(steps) == {"all-reduce", "ps"}
    for step in steps.values():
        assert {span.kind for span in step.spans} == {"computing", "exchange", "transfer"}
        assert all(span.start_s < span.end_s for span in step.spans)
    assert {span.tasks for span in steps["all-reduce"].spans} == {"workers 0\N{EN DASH}1"}


def test_a_timeline_is_as_long_as_the_simulated_step(run: StoredRun) -> None:
    (workload,) = workloads = profiled_workloads(run)
    for step in timelines(run, workloads, (), PROBE):
        record = next(record for record in run.records if record.case == step.case)
        question = measured_cases.question_of(record)
        strategy = measured_cases.strategy_of(record)
        planned = planned_for(workload, choose(strategy), question, PROBE)
        whole = simulated(planned, strategy, question, PROBE)
        end_s = max(span.end_s for span in step.spans)
        assert end_s == pytest.approx(whole.timeline.end_s, rel=0.01)
