"""The reference names every key, command, exit status, field, metric and workload."""

import dataclasses
import re

import pytest
import yaml
from pages import DOCS, ROOT, command_tree
from typer.core import TyperGroup

from harness import errors
from harness.experiment.cluster import Cluster, Link
from harness.experiment.model import (
    CaseFilter,
    Checkpoints,
    Compare,
    Experiment,
    FaultItem,
    Measure,
    Until,
)
from harness.measure.prometheus import METRICS
from harness.records.record import Record
from harness.sections import Option, Section
from reports.rows.row import all_figures
from workloads.table import WORKLOADS

EXPERIMENT, CLI, RECORDS, METRIC_PAGE, WORKLOAD_PAGE = (
    (DOCS / "reference" / f"{name}.md").read_text()
    for name in ("experiment", "cli", "records", "metrics", "workloads")
)


def names_in_first_column(page: str) -> set[str]:
    cells = re.findall(r"^\| ([^|]*) \|", page, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def keys(section: type[Section], prefix: str = "") -> set[str]:
    return {prefix + section.key_of(name) for name in section.model_fields}


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("Top level", keys(Experiment)),
        ("cluster", keys(Cluster) - {"link"} | keys(Link, "link.")),
        ("measure", keys(Measure) - {"until"} | keys(Until, "until.")),
        ("compare", keys(Compare)),
        ("checkpoint", keys(Checkpoints)),
        ("faults", keys(FaultItem)),
    ],
)
def test_a_section_has_every_key_of_the_experiment(title: str, expected: set[str]) -> None:
    section = EXPERIMENT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    assert names_in_first_column(section) == expected


def test_filters_name_every_key() -> None:
    section = EXPERIMENT.partition("Keys of an item:")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(\w+)`", section)) == keys(CaseFilter)


@pytest.mark.parametrize("section", [Experiment, Cluster, Measure, Until, Checkpoints])
def test_options_are_those_of_the_keys(section: type[Section]) -> None:
    for name, field in section.model_fields.items():
        for option in (item for item in field.metadata if isinstance(item, Option)):
            row = rf"^\| `(?:\w+\.)?{section.key_of(name)}` \|.* `--{option.name}` \|$"
            assert re.search(row, EXPERIMENT, re.MULTILINE), option.name


def test_the_example_is_quickstart() -> None:
    output = EXPERIMENT.partition("```yaml\n")[2].partition("```")[0]
    shipped = (ROOT / "harness/experiment/shipped/quickstart.yaml").read_text()
    assert yaml.safe_load(output) == yaml.safe_load(shipped)


def test_every_command_and_exit_status_is_named() -> None:
    tree = command_tree()
    for name, command in tree.commands.items():
        if not command.hidden:
            assert re.search(rf"^\| \[`{name}\b", CLI, re.MULTILINE), name
        if isinstance(command, TyperGroup):
            assert all(f"`{sub}`" in CLI for sub in command.commands)
    statuses = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert set(map(int, re.findall(r"^\| (\d+) \|", CLI, re.MULTILINE))) == statuses


def test_every_shipped_experiment_is_named() -> None:
    shipped = {path.stem for path in (ROOT / "harness/experiment/shipped").glob("*.yaml")}
    assert shipped <= names_in_first_column(CLI)


def test_every_field_of_a_record_is_named() -> None:
    table = RECORDS.partition("## Fields of a record")[2]
    names = {
        "class" if name == "strategy_class" else name for name in (f.name for f in dataclasses.fields(Record))
    }
    assert names_in_first_column(table) == names


def test_every_metric_is_named() -> None:
    gauges = {f"stratbench_{figure.gauge.name}" for _, figure in all_figures() if figure.gauge}
    assert names_in_first_column(METRIC_PAGE) == {metric.name for metric in METRICS} | gauges


def test_every_workload_is_named() -> None:
    table = WORKLOAD_PAGE.partition("## Shipped models")[2].partition("\n## ")[0]
    assert {name for name in names_in_first_column(table) if ":" not in name} == set(WORKLOADS)
