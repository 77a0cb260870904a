"""What the README shows works as it stands."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from harness.experiments import __file__ as experiments

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
STRATBENCH = Path(sys.executable).parent / "stratbench"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    shown = [line for block in blocks("console") for line in block.splitlines()]
    return [*shown, *re.findall(r"^\| `(stratbench [^`]*)`", README, re.MULTILINE)]


def test_the_experiment_is_quickstart_as_shipped() -> None:
    (shown,) = blocks("yaml")
    shipped = Path(experiments).with_name("quickstart.yaml").read_text()
    assert yaml.safe_load(shown) == yaml.safe_load(shipped)


def test_every_make_command_is_a_target() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    made = [command.split()[1] for command in commands() if command.startswith("make ")]
    assert made == ["bench", "test"]
    assert set(made) <= set(targets)


@pytest.mark.parametrize("command", [c for c in commands() if c.startswith("stratbench ")])
def test_every_command_and_option_exists(command: str) -> None:
    words = shlex.split(command)[1:]
    done = subprocess.run(
        [STRATBENCH, words[0], "--help"], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    for option in (word for word in words if word.startswith("--")):
        assert option in done.stdout


@pytest.mark.tensorflow
def test_the_example_workload_is_equivalent(tmp_path: Path) -> None:
    (example,) = blocks("python")
    (tmp_path / "my_model.py").write_text(example)
    (shown,) = [c for c in commands() if c.startswith("stratbench verify my_model")]
    done = subprocess.run(
        [STRATBENCH, *shlex.split(shown)[1:]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("EQUIVALENT: all-reduce (exact) on my_model.py:MyModel")
