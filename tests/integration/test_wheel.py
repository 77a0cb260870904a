"""The wheel: it has every file that the code reads, and works without a checkout."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from synthetic_run import Case, write_run

ROOT = Path(__file__).parents[2]
PACKAGES = ("harness", "strategies", "workloads", "reports")
FOR_CHECKOUTS = (
    "harness/provision/cluster/files/",
    "harness/provision/compose/",
    "harness/provision/image/",
)
"""Files for `make image`, compose and `ray up`, which are started from a checkout."""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, so that nothing of an earlier build gets into the wheel."""
    folder = tmp_path_factory.mktemp("sources")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture(scope="module")
def installed(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's files in a folder of their own."""
    folder = tmp_path_factory.mktemp("wheel")
    build = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index")
    command = [sys.executable, *build, "--wheel-dir", str(folder), str(sources)]
    subprocess.run(command, check=True, timeout=300)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def stratbench(installed: Path, arguments: Sequence[str], where: Path) -> str:
    """Run the command from the wheel's files and return its output."""
    command = [sys.executable, "-m", "harness.cli", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(
        command, cwd=where, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_has_every_file_of_the_packages(sources: Path, installed: Path) -> None:
    expected = {
        path.relative_to(sources).as_posix()
        for name in PACKAGES
        for path in (sources / name).rglob("*")
        if path.is_file()
    }
    there = {path.relative_to(installed).as_posix() for path in installed.rglob("*") if path.is_file()}
    assert {path for path in expected - there if not path.startswith(FOR_CHECKOUTS)} == set()
    assert {path.partition("/")[0].partition("-")[0] for path in there} == {*PACKAGES, "stratbench"}


def test_shipped_experiments_and_reports_work_from_it(installed: Path, tmp_path: Path) -> None:
    listed = json.loads(stratbench(installed, ["list", "experiments", "--json"], tmp_path))
    assert {"demo", "quickstart"} <= {row["name"] for row in listed}
    cases = [Case(workload="w", strategy=name, p50_s=0.01) for name in ("single", "ps")]
    write_run(tmp_path / "run", cases)
    stratbench(installed, ["report", "run"], tmp_path)
    assert "<html" in (tmp_path / "run" / "report.html").read_text()
