"""Predictions that `stratbench report` makes for runs without them."""

from pathlib import Path

import pytest
from synthetic_run import Case, write_run

from harness.cli.commands.report import _predict_missing
from harness.records.predictions import PROBES


def test_the_reason_for_missing_predictions_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    PROBES.mkdir(parents=True)
    path = write_run(tmp_path / "run", [Case(workload="w", strategy="ps")], n_repeats=1)
    monkeypatch.setattr("harness.run_predictions.predict_ended", lambda _: "it has no profile")
    _predict_missing([path, tmp_path / "missing"])
    assert f"{path}: not predicted: it has no profile\n" in capsys.readouterr().err
    assert not (tmp_path / "missing").exists()
