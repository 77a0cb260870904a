"""The README is short, its names exist, and its examples work as they stand."""

import re
from pathlib import Path

import pytest
from pages import DOCS, ROOT, blocks, command_tree, commands, run

from harness import errors
from strategies.registry import STRATEGIES

README = (ROOT / "README.md").read_text()
OWN_MODEL = (DOCS / "tutorials" / "own-model.md").read_text()


def test_it_is_read_in_minutes() -> None:
    assert len(README.splitlines()) <= 150
    assert len(README.split()) <= 900


def test_its_two_make_commands_are_targets() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    outputs = [command.split()[1] for command in commands(README) if command.startswith("make ")]
    assert outputs == ["bench", "test"]
    assert set(outputs) <= set(targets)


def test_commands_and_exit_statuses_are_complete() -> None:
    assert all(f"{name}" in README for name in command_tree().commands)
    statuses = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert set(map(int, re.findall(r"^\| (\d+) \|", README, re.MULTILINE))) == statuses


def test_its_strategies_exist() -> None:
    table = README.partition("| usual name | here |")[2].partition("\n\n")[0]
    names = {name.partition(":")[0] for name in re.findall(r"`([^`]+)`", table)} - {"tf.distribute"}
    assert names <= {strategy.name for strategy in STRATEGIES}


def test_its_usual_names_are_those_of_the_registry() -> None:
    rows = README.partition("| usual name | here |")[2].partition("\n\n")[0].splitlines()
    named = {s.name: s.usual_name for s in STRATEGIES if any(f"`{s.name}`" in row for row in rows)}
    for strategy in ("all-reduce", "sharded-update", "fully-sharded", "ps"):
        assert any(f"| {named[strategy]} |" in row and f"`{strategy}`" in row for row in rows), strategy


@pytest.mark.tensorflow
@pytest.mark.parametrize("page", [README, OWN_MODEL], ids=["readme", "own-model"])
def test_the_example_workloads_are_equivalent(page: str, tmp_path: Path) -> None:
    for example in blocks(page, "python"):
        name = example.partition("\n")[0].removeprefix("# ")
        (tmp_path / name).write_text(example)
    verified = [command for command in commands(page) if command.startswith("stratbench verify my_")]
    assert verified
    for command in verified:
        workload = command.split()[2]
        assert run(command, tmp_path).startswith(f"EQUIVALENT: all-reduce (exact) on {workload}")
