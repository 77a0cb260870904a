"""A command in a process of its own: which code it runs, and that it ends with whoever waits for it."""

import subprocess
from pathlib import Path

import pytest

from harness import stratbench_process
from harness.stratbench_process import run_stratbench


def test_it_is_this_stratbench_whatever_lies_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "harness" / "cli"
    other.mkdir(parents=True)
    (tmp_path / "harness" / "__init__.py").touch()
    (other / "__init__.py").touch()
    (other / "__main__.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    with (tmp_path / "log").open("wb") as log:
        assert run_stratbench(["list", "providers"], log=log) == 0
        assert run_stratbench(["list", "nothing"], log=log) == 2
    assert "local" in (tmp_path / "log").read_text()


def test_an_interruption_of_the_wait_ends_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Interrupting(subprocess.Popen[bytes]):
        """The first wait is interrupted."""

        def wait(self, timeout: float | None = None) -> int:
            if not started:
                started.append(self)
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(stratbench_process.subprocess, "Popen", Interrupting)
    asked = ["nightly", "quickstart", "--store", str(tmp_path), "--at", "02:30"]
    with (tmp_path / "log").open("wb") as log, pytest.raises(KeyboardInterrupt):
        run_stratbench(asked, log=log)
    (process,) = started
    assert process.returncode is not None
    assert process.returncode != 0
