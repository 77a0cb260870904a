"""Run folders from anyone: nothing outside of them is read, nothing in them keeps a reader waiting."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from synthetic_run import SINGLE, Case, write_run

import reports
from harness.records import steps_file
from harness.records.checksums import with_checksum, without_checksum
from harness.records.record import MOST_LINE_BYTES
from reports.compare import build
from reports.load import Run, load, read_steps
from reports.repeat_files import plans
from reports.rows.parts import StepSeries
from reports.rows.report import LeftOut

CASES = [Case(workload="w", p50_s=0.02, **SINGLE), Case(workload="w", strategy="ps", p50_s=0.01)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", CASES)


@pytest.fixture
def stranger(folder: Path) -> Path:
    """A file outside of the run folder that could be taken for one of its own."""
    run = load(folder)
    path = folder.parent / "outside" / "0" / "steps.parquet"
    path.parent.mkdir(parents=True)
    path.write_bytes((run.stored.repeat_dir(run.records[0]) / "steps.parquet").read_bytes())
    return path


def first_repeat(folder: Path) -> Path:
    run = load(folder)
    assert run.records[0].repeat == 0
    return run.stored.repeat_dir(run.records[0])


def moved_to_link(path: Path, target: Path) -> None:
    path.rename(path.with_name(f"{path.name}-moved"))
    path.symlink_to(target)


def link_to_file(folder: Path, stranger: Path) -> None:
    moved_to_link(first_repeat(folder) / "steps.parquet", stranger)


def link_to_repeat(folder: Path, stranger: Path) -> None:
    moved_to_link(first_repeat(folder), stranger.parent)


def link_to_case(folder: Path, stranger: Path) -> None:
    moved_to_link(first_repeat(folder).parent, stranger.parent.parent)


def link_within(folder: Path, stranger: Path) -> None:
    """Harmless by itself, but what it names may change between looking and reading."""
    del stranger
    steps = first_repeat(folder) / "steps.parquet"
    moved_to_link(steps, steps.with_name("steps.parquet-moved"))


def pipe(folder: Path, stranger: Path) -> None:
    """Reading it would wait for a writer."""
    del stranger
    steps = first_repeat(folder) / "steps.parquet"
    steps.unlink()
    os.mkfifo(steps)


def folder_for_file(folder: Path, stranger: Path) -> None:
    del stranger
    steps = first_repeat(folder) / "steps.parquet"
    steps.unlink()
    steps.mkdir()


def socket_for_file(folder: Path, stranger: Path) -> None:
    del stranger
    steps = first_repeat(folder) / "steps.parquet"
    steps.unlink()
    here = Path.cwd()
    os.chdir(steps.parent)  # names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("steps.parquet")
    finally:
        os.chdir(here)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (link_to_file, "symbolic link"),
        (link_to_repeat, "symbolic link"),
        (link_to_case, "symbolic link"),
        (link_within, "symbolic link"),
        (pipe, "pipe"),
        (folder_for_file, "folder"),
        (socket_for_file, "socket"),
    ],
)
def test_what_is_no_file_of_the_folder_is_refused_and_named(
    folder: Path, stranger: Path, change: Callable[[Path, Path], None], named: str
) -> None:
    record = load(folder).records[0]
    assert isinstance(read_steps(load(folder), record), StepSeries)
    change(folder, stranger)
    steps = read_steps(load(folder), record)
    assert isinstance(steps, LeftOut)
    assert named in steps.why
    assert "not followed" in steps.why
    messages: list[str] = []
    page = reports.render([folder], "html", notify=messages.append)
    assert any(f"{record.case}/0/steps.parquet" in line and named in line for line in messages)
    assert f"{record.case}/0/steps.parquet" in page


def test_all_cases_elsewhere_are_refused(folder: Path) -> None:
    cases = folder / "cases"
    cases.rename(folder.parent / "elsewhere")
    cases.symlink_to(folder.parent / "elsewhere")
    run = load(folder, with_files=True)
    assert len(run.records) == len(run.left_out) == 6
    assert all("symbolic link" in item.why for item in run.left_out)


@pytest.mark.parametrize("name", ["results.jsonl", "environment.json", "experiment.yaml"])
@pytest.mark.parametrize("make", ["link", "pipe"])
def test_documents_are_held_to_the_same_rule(folder: Path, name: str, make: str) -> None:
    file = folder / name
    file.rename(folder.parent / name)
    os.mkfifo(file) if make == "pipe" else file.symlink_to(folder.parent / name)
    run = load(folder)
    assert len(run.records) == (0 if name == "results.jsonl" else 6)
    assert [item.where for item in run.left_out] == [name]
    assert "not followed" in run.left_out[0].why


def test_a_run_folder_that_is_reached_by_a_link_is_read(folder: Path) -> None:
    (folder.parent / "newest").symlink_to(folder)
    run = load(folder.parent / "newest", with_files=True)
    assert (len(run.records), run.left_out) == (6, ())
    assert isinstance(read_steps(run, run.records[0]), StepSeries)


def edit(folder: Path, change: Callable[[list[bytes]], list[bytes]]) -> Run:
    path = folder / "results.jsonl"
    path.write_bytes(b"\n".join(change(path.read_bytes().splitlines())) + b"\n")
    return load(folder)


def rewritten(line: bytes, change: dict[str, object]) -> bytes:
    return json.dumps(with_checksum(without_checksum(json.loads(line)) | change)).encode()  # type: ignore[arg-type, operator]


FOREIGN = [
    pytest.param(b'{"event": "started", "pid": 7}', "schema", id="another program's"),
    pytest.param(b'{"schema": 2, "tokens": [1, 2', "JSON", id="truncated"),
    pytest.param(b'{"schema": true}', "schema", id="schema of another type"),
    pytest.param(b'{"schema": -3}', "1 or more", id="schema below all"),
    pytest.param(b'{"schema": 2, "loss": NaN}', "NaN", id="not a number"),
    pytest.param(b'{"schema": 2, "wall_s": 1e999}', "checksum", id="infinite"),
    pytest.param(b"\xff\xfe\x00garbage", "JSON", id="bytes"),
    pytest.param(b"[" * 100_000, "JSON", id="nested"),
    pytest.param(b"9" * 10_000, "larger than any", id="large whole number"),
    pytest.param(b'{"schema":2,"x":"' + b"a" * (MOST_LINE_BYTES * 2) + b'"}', "at most", id="long"),
]


@pytest.mark.parametrize(("line", "why"), FOREIGN)
def test_a_line_that_is_no_record_is_passed_over_and_named(folder: Path, line: bytes, why: str) -> None:
    run = edit(folder, lambda lines: [*lines[:2], line, *lines[2:]])
    assert len(run.records) == 6
    assert [item.where for item in run.left_out] == ["results.jsonl line 3"]
    assert why in run.left_out[0].why


def test_a_record_of_another_run_is_left_out(folder: Path) -> None:
    run = edit(folder, lambda lines: [*lines[:3], rewritten(lines[3], {"run": "theirs"}), *lines[4:]])
    assert len(run.records) == 5
    assert [item.where for item in run.left_out] == ["results.jsonl line 4"]
    assert "'theirs'" in run.left_out[0].why


def test_a_record_of_a_newer_version_names_that_version(folder: Path) -> None:
    newer: dict[str, object] = {"schema": 99, "provenance": {"versions": {"stratbench": "7.4.0"}}}
    run = edit(folder, lambda lines: [rewritten(lines[0], newer), *lines[1:]])
    assert len(run.records) == 5
    assert "7.4.0 or later" in run.left_out[0].why
    assert run.left_out[0].where == "results.jsonl line 1"


def test_a_record_from_before_checksums_is_read_with_defaults(folder: Path) -> None:
    def older(line: bytes) -> bytes:
        document = without_checksum(json.loads(line))
        for late in ("rounds", "stability", "aggregation", "evaluation", "file_checksums", "observer"):
            del document[late]
        return json.dumps(document | {"schema": 1}).encode()

    before = load(folder)
    run = edit(folder, lambda lines: [older(line) for line in lines])
    assert run.left_out == ()
    assert [r.step_s for r in run.records] == [r.step_s for r in before.records]


def test_a_few_of_many_are_told_and_the_rest_counted(folder: Path) -> None:
    edit(folder, lambda lines: [*lines, *[b"oops"] * 9, lines[-1]])
    messages: list[str] = []
    text = reports.render([folder], "html", notify=messages.append)
    assert len(messages) == 6
    assert messages[0].startswith("left out: ")
    assert "results.jsonl line 7" in messages[0]
    assert messages[-1] == "left out: 5 more, listed in the report"
    assert "results.jsonl line 15" in text


@pytest.mark.parametrize("kind", ["csv", "junit"])
def test_all_are_told_if_the_report_cannot_list_them(folder: Path, kind: str) -> None:
    edit(folder, lambda lines: [*lines, *[b"oops"] * 9, lines[-1]])
    messages: list[str] = []
    reports.render([folder], kind, notify=messages.append)
    assert len([message for message in messages if message.startswith("left out: ")]) == 10


def test_a_small_file_of_endless_steps_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = load(folder)
    n_rows = 58 * run.records[-1].workers
    monkeypatch.setattr(steps_file, "MOST_ROWS", n_rows)
    assert isinstance(read_steps(run, run.records[-1]), StepSeries)
    monkeypatch.setattr(steps_file, "MOST_ROWS", n_rows - 1)
    refused = read_steps(run, run.records[-1])
    assert isinstance(refused, LeftOut)
    assert f"at most {n_rows - 1} steps, got {n_rows}" in refused.why


def test_a_plan_longer_than_any_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "MOST_PLAN_BYTES", 20)
    (first_repeat(folder) / "plan.json").write_text('{"nodes": []' + " " * 20 + "}")
    (item,) = build([load(folder)], with_files=True).left_out
    assert item.where.endswith("/plan.json")
    assert "must be at most 20 bytes, got 33" in item.why


def without_checksums(folder: Path) -> None:
    """The folder as versions wrote it that knew none, so that anything in it is believed."""
    head = without_checksum(json.loads((folder / "run.json").read_text()))
    (folder / "run.json").write_text(json.dumps({**head, "schema": 1}))


MULTIPLIED = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
ENDLESS = [
    pytest.param("experiment.yaml", "name: &a [*a]", "nested at most 100 times", id="aliases of themselves"),
    pytest.param("experiment.yaml", MULTIPLIED, "at most 50,000 values", id="aliases of aliases"),
    pytest.param(
        "environment.json", '{"a":' * 900 + "1" + "}" * 900, "nested at most 100", id="nested objects"
    ),
    pytest.param(
        "environment.json", '{"a":' + "[" * 900 + "]" * 900 + "}", "nested at most 100", id="nested lists"
    ),
    pytest.param(
        "environment.json", json.dumps(dict.fromkeys(map(str, range(50_001)))), "50,000", id="many values"
    ),
]


@pytest.mark.parametrize(("name", "content", "why"), ENDLESS)
@pytest.mark.parametrize("is_sealed", [True, False], ids=["checksums", "no checksums"])
def test_a_document_that_nobody_could_go_through_is_left_out(
    folder: Path, name: str, content: str, why: str, is_sealed: bool
) -> None:
    if not is_sealed:
        without_checksums(folder)
    (folder / name).write_text(content)
    run = load(folder)
    assert len(run.records) == 6
    assert [item.where for item in run.left_out] == [name]
    assert why in run.left_out[0].why
    reports.render([folder], "json")
