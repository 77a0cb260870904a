"""Facts that differ between runs, or between records of one, and the command that makes a run again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_run import SINGLE, Case, write_run

import reports
from harness.records.checksums import with_checksum
from harness.records.record import Record, to_json
from harness.records.stored_run import load_run
from reports.compare import build
from reports.load import load
from reports.rows.report import FactValue
from reports.tables.placements import difference_table

CASES = [Case(workload="w", **SINGLE), Case(workload="w", strategy="ps")]


def rewritten(path: Path, change: Callable[[Record], Record]) -> Path:
    lines = [to_json(change(record)) for record in load_run(path).records]
    (path / "results.jsonl").write_text("\n".join(lines) + "\n")
    return path


def with_environment(path: Path, **more: object) -> Path:
    file = path / "environment.json"
    document = {name: value for name, value in json.loads(file.read_text()).items() if name != "checksum"}
    file.write_text(json.dumps(with_checksum(document | more)))
    return path


def elsewhere(record: Record) -> Record:
    assert record.machine is not None
    assert record.provenance is not None
    versions = {**record.provenance.versions, "keras": "3.13.0"}
    return replace(
        record,
        machine=replace(record.machine, n_cores=8),
        provenance=replace(record.provenance, versions=versions),
    )


def cells_of(*paths: Path) -> list[list[str]]:
    table = difference_table(build([load(path) for path in paths]))
    return [] if table is None else [[cell.text for cell in row] for row in table.rows]


def test_runs_that_are_alike_have_no_table(tmp_path: Path) -> None:
    first, second = (write_run(tmp_path / name, CASES) for name in "ab")
    assert cells_of(first) == cells_of(first, second) == []


def test_facts_that_differ_between_runs_stand_beside_each_other(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a", CASES)
    second = rewritten(write_run(tmp_path / "b", CASES), elsewhere)
    assert cells_of(first, second) == [["cores", "2", "8"], ["keras", "3.12.0", "3.13.0"]]
    text = reports.render([first, second], "md")
    assert "<summary>Differences</summary>" in text
    assert "| keras | 3.12.0 | 3.13.0 |" in text


def test_within_one_run_values_have_the_number_of_their_records(tmp_path: Path) -> None:
    def change(record: Record) -> Record:
        return elsewhere(record) if record.repeat == 2 else record

    report = build([load(rewritten(write_run(tmp_path / "run", CASES), change))])
    (cores, keras) = report.differences
    assert cores.values == ((FactValue(text="2", n_records=4), FactValue(text="8", n_records=2)),)
    assert keras.fact == "keras"
    table = difference_table(report)
    assert table is not None
    assert (table.rows[0][1].text, table.rows[0][1].note) == ("2; 8", "4, 2 records")
    assert [column.name for column in table.columns] == ["fact", report.origins[0].run]


def test_a_setting_of_one_run_alone_is_a_difference_and_an_unknown_fact_is_none(tmp_path: Path) -> None:
    first = with_environment(write_run(tmp_path / "a", CASES), environ={"OMP_NUM_THREADS": "4"})

    def forget(record: Record) -> Record:
        assert record.machine is not None
        return replace(record, machine=replace(record.machine, kernel=None, architecture=None))

    second = rewritten(write_run(tmp_path / "b", CASES), forget)
    assert cells_of(first, second) == [["environ.OMP NUM THREADS", "4", "–"]]


def test_what_makes_a_case_is_no_difference(tmp_path: Path) -> None:
    of_gpus = Case(workload="w", strategy="ps", precision="float64", xla=True, tf32=False)
    mixed = [*CASES, of_gpus, replace(of_gpus, tf32=True)]
    assert cells_of(write_run(tmp_path / "run", mixed)) == []


@pytest.mark.parametrize("format", ["html", "md", "json"])
def test_the_command_is_shown_without_secrets(tmp_path: Path, format: str) -> None:  # noqa: A002
    path = write_run(tmp_path / "run", CASES)
    with_environment(path, command="stratbench run mine.yaml --set workload.token=s3cret --seed 7")
    origin = build([load(path)]).origins[0]
    assert dict(origin.facts)["made by"].endswith("--set workload.token=[redacted] --seed 7")
    text = reports.render([path], format)
    assert "mine" in text
    assert "s3cret" not in text
