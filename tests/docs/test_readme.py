"""What the README shows works as it stands."""

import re
from pathlib import Path

import pytest
import yaml
from pages import ROOT, blocks, commands, refuse_unknown_options, run

from harness.experiments import __file__ as experiments

README = (ROOT / "README.md").read_text()


def test_the_experiment_is_quickstart_as_shipped() -> None:
    (shown,) = blocks(README, "yaml")
    shipped = Path(experiments).with_name("quickstart.yaml").read_text()
    assert yaml.safe_load(shown) == yaml.safe_load(shipped)


def test_every_make_command_is_a_target() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    made = [command.split()[1] for command in commands(README) if command.startswith("make ")]
    assert made == ["bench", "test"]
    assert set(made) <= set(targets)


@pytest.mark.parametrize("command", [c for c in commands(README) if c.startswith("stratbench ")])
def test_every_command_and_option_exists(command: str) -> None:
    refuse_unknown_options(command)


@pytest.mark.tensorflow
def test_the_example_workload_is_equivalent(tmp_path: Path) -> None:
    (example,) = blocks(README, "python")
    (tmp_path / "my_model.py").write_text(example)
    (shown,) = [c for c in commands(README) if c.startswith("stratbench verify my_model")]
    assert run(shown, tmp_path).startswith("EQUIVALENT: all-reduce (exact) on my_model.py:MyModel")
