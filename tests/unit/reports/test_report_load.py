"""Damaged run folders: what is usable is used, the rest is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from synthetic_run import SINGLE, Case, write_run

from harness.errors import StoreError
from reports.compare import build
from reports.load import Run, load, read_steps
from reports.rows import LeftOut, Steps

CASES = [Case(workload="w", p50_s=0.02, **SINGLE), Case(workload="w", strategy="ps", p50_s=0.01)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", CASES)


def edit(folder: Path, change: Callable[[list[str]], list[str]]) -> Run:
    path = folder / "results.jsonl"
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")
    return load(folder)


def test_a_sound_folder_leaves_nothing_out(folder: Path) -> None:
    run = load(folder)
    assert (len(run.records), run.left_out) == (6, ())


def test_a_torn_last_line_is_said(folder: Path) -> None:
    with (folder / "results.jsonl").open("a") as stream:
        stream.write('{"schema":1,')
    run = load(folder)
    assert len(run.records) == 6
    assert "incomplete" in run.left_out[0].why


@pytest.mark.parametrize("line", ["not json", "[]", "{}", '{"schema":1}', '{"schema":99}', "\x00\x00"])
def test_a_damaged_line_costs_that_line_only(folder: Path, line: str) -> None:
    run = edit(folder, lambda lines: [line, *lines])
    assert len(run.records) == 6
    assert [item.where for item in run.left_out] == ["results.jsonl line 1"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("examples_per_s", "fast"),
        ("step_s", 3),
        ("tcp_matrix", [[1], "x"]),
        ("loss", {}),
        ("batch_size", 1.5),
    ],
)
def test_a_damaged_field_costs_that_field_only(folder: Path, field: str, value: object) -> None:
    run = edit(folder, lambda lines: [json.dumps(json.loads(lines[0]) | {field: value}), *lines[1:]])
    assert len(run.records) == 6
    assert getattr(run.records[0], field) is None
    assert len(run.left_out) == 1
    assert run.left_out[0].why.startswith(field)
    assert "shown as missing" in run.left_out[0].why


def test_two_damaged_fields_of_a_line_are_both_said(folder: Path) -> None:
    broken = {"loss": "x", "transform_s": "y"}
    run = edit(folder, lambda lines: [json.dumps(json.loads(lines[0]) | broken), *lines[1:]])
    assert len(run.records) == 6
    assert len(run.left_out) == 2


def test_a_line_that_names_no_case_is_left_out(folder: Path) -> None:
    run = edit(folder, lambda lines: [json.dumps(json.loads(lines[0]) | {"workload": 7}), *lines[1:]])
    assert len(run.records) == 5
    assert "the line is left out" in run.left_out[0].why


@pytest.mark.parametrize("name", ["environment.json", "experiment.yaml"])
@pytest.mark.parametrize("text", ["{", "- 1\n- 2\n", ""])
def test_a_damaged_side_file_does_not_cost_the_results(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    run = load(folder)
    assert len(run.records) == 6
    assert [item.where for item in run.left_out] == [name]


def test_absent_results_make_an_empty_report(folder: Path) -> None:
    (folder / "results.jsonl").unlink()
    assert build([load(folder)]).comparisons == ()


def test_what_is_no_run_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="run folder"):
        load(tmp_path)
    with pytest.raises(StoreError, match="no such folder"):
        load(tmp_path / "absent")


def test_a_repeat_run_again_counts_once_and_is_said(folder: Path) -> None:
    run = edit(folder, lambda lines: [*lines, lines[0]])
    assert len(run.records) == 6
    assert "run again" in run.left_out[0].why


def test_missing_and_damaged_steps_are_said(folder: Path) -> None:
    run = load(folder)
    first, second = run.records[:2]
    assert isinstance(read_steps(run, first), Steps)
    run.stored.repeat_dir(first).joinpath("steps.parquet").write_bytes(b"PAR1")
    run.stored.repeat_dir(second).joinpath("steps.parquet").unlink()
    for record in (first, second):
        found = read_steps(run, record)
        assert isinstance(found, LeftOut)
        assert "step times are not shown" in found.why
    assert len(build([run], read_steps=read_steps).left_out) == 2


@pytest.mark.parametrize("case", ["../../etc", "..", "a/b", "/etc"])
def test_a_case_id_cannot_point_out_of_the_folder(folder: Path, case: str) -> None:
    run = edit(folder, lambda lines: [json.dumps(json.loads(lines[0]) | {"case": case}), *lines[1:]])
    found = read_steps(run, run.records[0])
    assert isinstance(found, LeftOut)
    assert "not the name of a folder" in found.why
