"""No process of ours takes what lies in the current folder for one of our packages."""

import subprocess
import sys
from pathlib import Path

import pytest

from harness import processes
from harness.processes import module_command, run_stratbench

_ROOT = Path(__file__).resolve().parents[3]
_PACKAGES = ("harness", "reports", "strategies", "workloads")


def test_the_current_folder_is_not_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit(7)\n")
    monkeypatch.chdir(tmp_path)
    command = module_command("harness.cli", "list", "providers")
    assert subprocess.run(command, stdout=subprocess.DEVNULL, check=False, timeout=60).returncode == 0
    # Which it could not but for -P.
    command.remove("-P")
    assert subprocess.run(command, stdout=subprocess.DEVNULL, check=False, timeout=60).returncode == 7


def test_it_keeps_the_folders_of_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside.py").write_text("print('found')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert subprocess.check_output(module_command("beside"), timeout=60) == b"found\n"
    assert module_command("beside")[0] == sys.executable


def test_every_process_of_ours_is_started_by_it() -> None:
    sources = (path for package in _PACKAGES for path in (_ROOT / package).rglob("*.py"))
    users = {str(path.relative_to(_ROOT)) for path in sources if "sys.executable" in path.read_text()}
    assert users == {"harness/processes.py"}


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

    monkeypatch.setattr(processes.subprocess, "Popen", Interrupting)
    arguments = ["nightly", "serve", "quickstart", "--store", str(tmp_path), "--at", "02:30"]
    with (tmp_path / "log").open("wb") as log, pytest.raises(KeyboardInterrupt):
        run_stratbench(arguments, log=log)
    (process,) = started
    assert process.returncode is not None
    assert process.returncode != 0
