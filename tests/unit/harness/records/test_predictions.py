"""Predictions beside a run's results: read as written, and refused if they are damaged."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_run import SINGLE, Case, write_run

from harness.errors import StoreError
from harness.records.checksums import with_checksum
from harness.records.predictions import drop_predictions, stored_predictions
from harness.records.run_documents import PREDICTIONS, is_of_run
from harness.records.stored_run import load_run

REDUCE = Case(workload="w", strategy="all-reduce", predicted_s=0.011)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", [Case(workload="w", **SINGLE), REDUCE], n_repeats=1)


def changed(run_dir: Path, **fields: object) -> None:
    """Change all predictions of a run, with the right checksum."""
    document = json.loads((run_dir / PREDICTIONS).read_text())
    document.pop("checksum")
    for prediction in document["cases"].values():
        prediction.update(fields)
    (run_dir / PREDICTIONS).write_text(json.dumps(with_checksum(document)))


def test_predictions_are_read_by_case(run_dir: Path) -> None:
    stored = load_run(run_dir)
    case = next(record.case for record in stored.records if record.strategy == "all-reduce")
    (prediction,) = stored.predictions.values()
    assert list(stored.predictions) == [case]
    assert (prediction.step_s, prediction.interval.low, prediction.limited_by) == (0.011, 0.0088, "computing")
    assert stored.damaged == ()
    assert is_of_run(run_dir / PREDICTIONS)


def test_a_run_without_predictions_has_none(tmp_path: Path) -> None:
    stored = load_run(write_run(tmp_path / "run", [Case(workload="w", **SINGLE)], n_repeats=1))
    assert (dict(stored.predictions), stored.damaged) == ({}, ())


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"step_s": -1.0}, "must lie above 0 and in its interval, got -1 s; remove predictions.json"),
        ({"step_s": 5.0}, "must lie above 0 and in its interval, got 5 s"),
        ({"limited_by": "<script>"}, "got limited_by '<script>'; remove predictions.json"),
        ({"workers": None}, "got workers None"),
    ],
)
def test_damaged_predictions_are_named_and_left_out(run_dir: Path, fields: dict, why: str) -> None:
    changed(run_dir, **fields)
    stored = load_run(run_dir)
    (damage,) = stored.damaged
    assert (dict(stored.predictions), damage.where) == ({}, PREDICTIONS)
    assert why in damage.why


def test_edited_predictions_do_not_match_their_checksum(run_dir: Path) -> None:
    path = run_dir / PREDICTIONS
    path.write_text(path.read_text().replace("0.011", "0.010"))
    assert "checksum" in load_run(run_dir).damaged[0].why


def test_predictions_of_a_newer_version_are_left_out(run_dir: Path) -> None:
    document = json.loads((run_dir / PREDICTIONS).read_text())
    document.pop("checksum")
    (run_dir / PREDICTIONS).write_text(json.dumps(with_checksum({**document, "schema": 2})))
    stored = load_run(run_dir)
    assert stored.predictions == {}
    assert "must have a schema up to 1, got 2" in stored.damaged[0].why


def test_dropped_predictions_leave_those_of_other_cases(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run", [REDUCE, replace(REDUCE, strategy="ps")], n_repeats=1)
    first, second = load_run(run_dir).predictions
    drop_predictions(run_dir, {first})
    assert list(load_run(run_dir).predictions) == [second]
    changed(run_dir, step_s=-1.0)
    drop_predictions(run_dir, {first})
    assert not (run_dir / PREDICTIONS).exists()
    drop_predictions(run_dir, {first})


def test_documents_with_other_fields_are_read(run_dir: Path) -> None:
    (document,) = json.loads((run_dir / PREDICTIONS).read_text())["cases"].values()
    assert stored_predictions([{**document, "new": 1}]) == list(load_run(run_dir).predictions.values())
    with pytest.raises(StoreError, match="got step_s"):
        stored_predictions([{**document, "step_s": "soon"}])
