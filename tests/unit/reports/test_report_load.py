"""Damaged run folders: what is usable is used, the rest is said."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from synthetic_run import SINGLE, Case, write_run

import reports
from harness.errors import StoreError
from harness.records.checksums import sealed, unsealed
from harness.records.outcome import Failure
from harness.records.record import Record
from harness.records.run_folder import open_run
from reports.compare import build
from reports.load import Run, load, read_steps
from reports.rows.evidence import StepSeries
from reports.rows.report import LeftOut

CASES = [Case(workload="w", p50_s=0.02, **SINGLE), Case(workload="w", strategy="ps", p50_s=0.01)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", CASES)


def edit(folder: Path, change: Callable[[list[str]], list[str]]) -> Run:
    path = folder / "results.jsonl"
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")
    return load(folder)


def written(line: str, change: dict[str, object]) -> str:
    """The line of another version, which would have written some fields otherwise."""
    return json.dumps(sealed(unsealed(json.loads(line)) | change))  # type: ignore[arg-type, operator]


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
    run = edit(folder, lambda lines: [written(lines[0], {field: value}), *lines[1:]])
    assert len(run.records) == 6
    assert getattr(run.records[0], field) is None
    assert len(run.left_out) == 1
    assert run.left_out[0].why.startswith(field)
    assert "shown as missing" in run.left_out[0].why


def test_two_damaged_fields_of_a_line_are_both_said(folder: Path) -> None:
    broken = {"loss": "x", "transform_s": "y"}
    run = edit(folder, lambda lines: [written(lines[0], broken), *lines[1:]])
    assert len(run.records) == 6
    assert len(run.left_out) == 2


def test_a_line_that_names_no_case_is_left_out(folder: Path) -> None:
    run = edit(folder, lambda lines: [written(lines[0], {"workload": 7}), *lines[1:]])
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
    assert isinstance(read_steps(run, first), StepSeries)
    run.stored.repeat_dir(first).joinpath("steps.parquet").write_bytes(b"PAR1")
    run.stored.repeat_dir(second).joinpath("steps.parquet").unlink()
    for record in (first, second):
        found = read_steps(run, record)
        assert isinstance(found, LeftOut)
        assert "step times are not shown" in found.why
    assert len(build([run], read_steps=read_steps).left_out) == 2


@pytest.mark.parametrize("case", ["../../etc", "..", "a/b", "/etc"])
def test_a_case_id_cannot_point_out_of_the_folder(folder: Path, case: str) -> None:
    run = edit(folder, lambda lines: [written(lines[0], {"case": case}), *lines[1:]])
    found = read_steps(run, run.records[0])
    assert isinstance(found, LeftOut)
    assert "must lie in the run folder" in found.why


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A run folder with one file of every kind."""
    with open_run(
        tmp_path / "run",
        experiment={"name": "é", "workloads": ["w"], "seed": 17, "rate": 0.5},
        environment={"python": "3.11.7", "env": {"OMP_NUM_THREADS": "1"}, "n": 2},
    ) as folder:
        for case in ("a", "b"):
            folder.write_plan(case, 0, {"nodes": [{"variable": case}]})
            folder.write_trace(case, 0, {"events": [1, 2]})
            folder.append(a_record(folder.run, case))
    return tmp_path / "run"


def a_record(run: str, case: str) -> Record:
    return Record(
        run=run,
        case=case,
        repeat=0,
        order=0,
        workload="w",
        strategy="ps",
        strategy_class="exact",
        provider="local",
        device="cpu",
        workers=2,
        replicas=1,
        status="ok",
        examples_per_s=640.25,
        notes=("é",),
    )


def shown(run: Run) -> set[str]:
    """Everything that a report could show of a run folder's documents and records."""
    head = {"created": run.stored.created_utc, "spec": run.stored.spec_hash}
    documents = {"experiment": run.experiment, "environment": run.stored.environment}
    records = {str(record) for record in run.records}
    return records | {f"{name} {value}" for name, value in (head | documents).items() if value}


@pytest.mark.parametrize(
    ("name", "n_bits"),
    [
        ("run.json", 400),
        ("environment.json", 300),
        ("experiment.yaml", 300),
        ("results.jsonl", 500),
        ("cases/a/0/plan.json", 100),
        ("cases/a/0/trace.json", 100),
    ],
)
def test_no_flipped_bit_changes_what_is_shown_without_a_word(small: Path, name: str, n_bits: int) -> None:
    sound = shown(load(small, with_files=True))
    file = small / name
    data = file.read_bytes()
    rng = random.Random(name)
    n_noticed = 0
    for _ in range(n_bits):
        place, bit = rng.randrange(len(data)), 1 << rng.randrange(8)
        file.write_bytes(data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :])
        run = load(small, with_files=True)
        assert shown(run) <= sound
        if shown(run) != sound or name.startswith("cases"):
            assert any(item.where.startswith(name.removeprefix("cases/")) for item in run.left_out)
            n_noticed += 1
    # What else there is are spaces, and letters that a number or an escape may be written with.
    assert n_noticed > 0.8 * n_bits


def test_flipped_bits_of_steps_are_said(folder: Path) -> None:
    run = load(folder)
    record = run.records[0]
    file = run.stored.repeat_dir(record) / "steps.parquet"
    data = file.read_bytes()
    rng = random.Random(0)
    for _ in range(200):
        place, bit = rng.randrange(len(data)), 1 << rng.randrange(8)
        file.write_bytes(data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :])
        assert isinstance(read_steps(run, record), LeftOut)
    report = build([load(folder, with_files=True)], read_steps=read_steps)
    assert [item.where for item in report.left_out] == [f"{run.name}: {record.case}/0/steps.parquet"]
    assert f"{record.case}/0/steps.parquet" in reports.render([folder], "html")


def test_what_a_csv_leaves_out_is_told(folder: Path) -> None:
    file = folder / "results.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"w"', b'"v"', 1))
    told: list[str] = []
    text = reports.render([folder], "csv", tell=told.append)
    assert ",v," not in text
    (line,) = told
    assert line.startswith("left out: ")
    assert "results.jsonl line 1: checksum: must be " in line


@pytest.mark.parametrize("column", ["worker", "step", "start_s", "window"])
@pytest.mark.parametrize("value", ["x", [1, 2]], ids=["words", "lists"])
def test_steps_of_other_types_are_left_out(folder: Path, column: str, value: str | list[int]) -> None:
    run = load(folder)
    file = run.stored.repeat_dir(run.records[0]) / "steps.parquet"
    table = pq.read_table(file)
    odd = pa.array([value] * table.num_rows)
    table = table.set_column(table.column_names.index(column), column, odd)
    pq.write_table(table, file)
    refused = read_steps(run, dataclasses.replace(run.records[0], file_checksums={}))
    assert isinstance(refused, LeftOut)
    assert "must hold steps written by stratbench" in refused.why


def mistake(*_: object, **__: object) -> None:
    raise ZeroDivisionError("a mistake of our own")


@pytest.mark.parametrize(
    "place",
    [
        "reports.load.load_run",
        "harness.records.store.read_steps",
        "reports.repeat_files.plans._placement",
        "reports.repeat_files.row_files._telling_log",
    ],
)
def test_a_mistake_of_our_own_is_not_taken_for_damage(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = {1: ("failed", Failure(type="worker-died", message="worker 1", stage="run"))}
    path = write_run(tmp_path / "run", [*CASES, Case(workload="w", strategy="all-reduce", problems=failed)])
    for record in load(path).records:
        beside = load(path).stored.repeat_dir(record)
        beside.mkdir(parents=True, exist_ok=True)
        (beside / "plan.json").write_text('{"nodes": []}')
    reports.render([path], "html")
    monkeypatch.setattr(place, mistake)
    with pytest.raises(ZeroDivisionError):
        reports.render([path], "html")


def test_a_mistake_in_reading_a_line_is_none_of_the_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(folder, lambda lines: ["not json", *lines])
    monkeypatch.setattr("reports.load.read_record", mistake)
    with pytest.raises(ZeroDivisionError):
        load(folder)
