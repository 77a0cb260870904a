"""Examples of the README work as they stand."""

import re
from pathlib import Path

import pytest
import yaml
from pages import ROOT, blocks, commands, refuse_unknown_options, run

from strategies.tpu_slices import parse_slice

README = (ROOT / "README.md").read_text()


def test_the_experiment_is_quickstart_as_shipped() -> None:
    (shown,) = blocks(README, "yaml")
    shipped = (ROOT / "harness/experiment/shipped/quickstart.yaml").read_text()
    assert yaml.safe_load(shown) == yaml.safe_load(shipped)


def test_every_make_command_is_a_target() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    made = [command.split()[1] for command in commands(README) if command.startswith("make ")]
    assert made == ["bench", "test"]
    assert set(made) <= set(targets)


@pytest.mark.parametrize("command", [c for c in commands(README) if c.startswith("stratbench ")])
def test_every_command_and_option_exists(command: str) -> None:
    refuse_unknown_options(command)


def test_a_slice_has_a_device_for_each_replica() -> None:
    ((replicas, name),) = re.findall(r"`--replicas (\d+) --slice (\S+)`", README)
    # On two workers, unless others are asked for.
    parse_slice(name).require_replicas(2 * int(replicas))


@pytest.mark.tensorflow
def test_the_example_workloads_are_equivalent(tmp_path: Path) -> None:
    for example in blocks(README, "python"):
        name = example.partition("\n")[0].removeprefix("# ")
        (tmp_path / name).write_text(example)
    verified = [c.split()[2] for c in commands(README) if c.startswith("stratbench verify my_")]
    for workload in ("my_model.py:MyModel", "my_fit.py:model"):
        assert workload in verified
        shown = f"stratbench verify {workload} --strategy all-reduce"
        assert run(shown, tmp_path).startswith(f"EQUIVALENT: all-reduce (exact) on {workload}")
