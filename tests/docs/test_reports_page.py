"""Examples of the page on reports work as they stand, and its tables are complete."""

import re
import shlex
from pathlib import Path

import pytest
import yaml
from pages import ROOT, blocks, commands, refuse_unknown_options, run
from synthetic_run import SINGLE, Case, write_run

from harness.cli.commands.report import Format
from reports.pages.data import COLUMN_NAMES
from reports.pages.markdown import MOST_CHARACTERS

PAGE = (ROOT / "docs" / "reports.md").read_text()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reports")
    for name in ("monday", "tuesday"):
        write_run(
            path / "runs" / name, [Case(workload="wide-mlp", strategy="ps"), Case(workload="w", **SINGLE)]
        )
    return path


@pytest.mark.parametrize("command", commands(PAGE))
def test_every_command_writes_what_it_says(command: str, folder: Path) -> None:
    run(command, folder)
    words = shlex.split(command)
    named = [words[i + 1] for i, word in enumerate(words) if word in ("--out", ">")]
    for path in named or ["runs/monday/report.html"]:
        assert (folder / path).is_file()


def test_formats_are_those_there_are() -> None:
    table = PAGE.partition("| `--format` |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == [item.value for item in Format]


def test_columns_of_the_csv_are_those_there_are_in_their_order() -> None:
    table = PAGE.partition("| column | is |")[2].partition("\n\n")[0]
    cells = re.findall(r"^\| (`[^|]*`) \|", table, re.MULTILINE)
    assert tuple(name for cell in cells for name in re.findall(r"`(\w+)`", cell)) == COLUMN_NAMES


def test_the_workflow_calls_what_exists_and_the_comment_fits() -> None:
    (workflow,) = blocks(PAGE, "yaml")
    (job,) = yaml.safe_load(workflow)["jobs"].values()
    called = [step["run"] for step in job["steps"] if "stratbench" in step.get("run", "")]
    assert len(called) == 3
    for line in called:
        refuse_unknown_options(line.removeprefix(".venv/bin/"))
    assert f"at most {MOST_CHARACTERS:,} characters" in PAGE
