"""No process of ours takes what lies in the current folder for one of our packages."""

import subprocess
import sys
from pathlib import Path

import pytest

from harness.module_command import module_command

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
    assert users == {"harness/module_command.py"}
