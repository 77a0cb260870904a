"""Predictions of a run's own cases are stored once, and no error of theirs reaches the run."""

from dataclasses import replace
from pathlib import Path

import pytest
from open_folders import made_record
from synthetic_run import write_run
from test_measured_cases import CASES, with_profile
from test_predictions import PROBE

from harness import run_predictions
from harness.experiment.cases import expand
from harness.experiment.load import resolve
from harness.prediction.probe import identity_of, machine_of
from harness.records.run_documents import PREDICTIONS
from harness.records.run_folder import open_run
from harness.records.stored_run import load_run
from harness.run_predictions import predict_ended, predict_measured


@pytest.fixture(autouse=True)
def probes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of stored probes, which is there once a probe was made."""
    folder = tmp_path / "probes"
    folder.mkdir()
    monkeypatch.setattr(run_predictions, "PROBES", folder)
    monkeypatch.setattr("harness.prediction.probe.PROBES", folder)
    return folder


def test_runs_are_not_predicted_before_the_first_probe(tmp_path: Path, probes: Path) -> None:
    run = with_profile(write_run(tmp_path / "run", CASES, n_repeats=1))
    probes.rmdir()
    assert predict_measured(run.path) == ""
    assert predict_ended(tmp_path / "no such run") == ""
    assert not (run.path / PREDICTIONS).exists()


def test_a_run_stores_its_predictions_once(tmp_path: Path) -> None:
    run = with_profile(write_run(tmp_path / "run", CASES, n_repeats=1))
    assert "stratbench probe" in predict_measured(run.path)
    assert not (run.path / PREDICTIONS).exists()
    probe_path = identity_of(run).probe_path
    PROBE.write(probe_path)
    assert predict_measured(run.path) == ""
    assert len(load_run(run.path).predictions) == 2
    before = (run.path / PREDICTIONS).read_bytes()
    doubled = {name: 2 * value for name, value in PROBE.costs.flat().items()}
    replace(PROBE, costs=PROBE.costs.with_values(doubled)).write(probe_path)
    assert predict_measured(run.path) == ""
    assert (run.path / PREDICTIONS).read_bytes() == before


def test_a_run_without_a_profile_says_how_to_get_one(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", CASES, n_repeats=1)
    PROBE.write(machine_of(load_run(path).records[0]).probe_path)
    assert "run it with the strategy none" in predict_measured(path)


def test_no_error_of_a_prediction_reaches_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("in a bug")

    monkeypatch.setattr(run_predictions, "measured_case_predictions", broken)
    assert predict_measured(write_run(tmp_path / "run", CASES, n_repeats=1)) == "in a bug"


def test_an_error_without_a_text_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(run_predictions, "measured_case_predictions", broken)
    path = write_run(tmp_path / "run", CASES, n_repeats=1)
    assert predict_measured(path) == "AssertionError"


def test_a_run_in_use_or_with_missing_repeats_is_not_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_predictions, "predict_measured", lambda _: "predicted")
    spec = resolve({"name": "x", "workloads": ["digits-mlp"], "strategies": ["none", "ps"]})
    path = tmp_path / "run"
    with open_run(path, experiment=spec.to_document(), environment={}) as folder:
        assert "in use by another run" in predict_ended(path)
        slots = [(case.id, repeat) for case in expand(spec) for repeat in range(spec.measure.repeats)]
        for slot in slots[1:]:
            folder.append(made_record(*slot))
    assert "repeats are missing; run them by `stratbench run" in predict_ended(path)
    with open_run(path, experiment=spec.to_document(), environment={}, resume=True) as folder:
        folder.append(made_record(*slots[0]))
    assert predict_ended(path) == "predicted"
