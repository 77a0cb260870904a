"""A run beside a test: what it refuses is told in a line, and it ends with the test."""

import subprocess
from pathlib import Path

import pytest

from harness.errors import CaseError
from harness.experiment.references import StrategyRef
from harness.pytest_plugin import case_run
from harness.pytest_plugin.one_case import CaseRequest, one_case

SPEC = one_case(CaseRequest(experiment="quickstart", workload="digits-cnn", strategy="all-reduce")).spec


def test_what_the_command_refuses_is_the_reason(tmp_path: Path) -> None:
    unknown = StrategyRef(name="all-redoce")
    spec = SPEC.with_strategies(unknown, baseline=unknown)
    with pytest.raises(CaseError) as refused:
        case_run.run_experiment(spec, tmp_path)
    assert str(refused.value) == (
        "strategies[0]: strategy 'all-redoce': unknown name; did you mean 'all-reduce'?"
    )
    assert not (tmp_path / "run").exists()


def test_a_command_that_leaves_nothing_is_told_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    (tmp_path / "run.log").write_text("of a run before")
    with pytest.raises(CaseError, match=rf"must leave a run, got status 1; its log is {tmp_path}/run\.log"):
        case_run.run_experiment(SPEC, tmp_path)
    assert not (tmp_path / "run.log").read_text()


def test_it_has_ended_once_the_test_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(subprocess.Popen[bytes]):
        """A process during which somebody presses Ctrl-C."""

        is_first = True

        def communicate(self, *args: object, **options: object) -> object:
            if self.is_first:
                self.is_first = False
                started.append(self)
                raise KeyboardInterrupt
            return super().communicate(*args, **options)

    started: list[Interrupted] = []
    monkeypatch.setattr(case_run.subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        case_run.run_experiment(SPEC, tmp_path)
    (process,) = started
    try:
        assert process.returncode is not None
    finally:
        process.kill()
        process.wait()
