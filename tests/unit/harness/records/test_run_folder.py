"""A run folder that is made, held, appended to and taken up again."""

import hashlib
import json
import multiprocessing
import os
import re
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from open_folders import EXPERIMENT, made_record, opened

from harness.errors import EXIT_USAGE, StoreError, UsageError
from harness.records.checksums import with_checksum, without_checksum
from harness.records.outcome import Failure
from harness.records.record import MOST_LINE_BYTES, to_json
from harness.records.run_documents import RUN_FILE, default_name
from harness.records.run_folder import RemovedRuns, RunFolder, lock_folder, open_run, remove_old_runs
from harness.records.stored_run import load_run


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunFolder]:
    with opened(tmp_path / "run") as folder:
        yield folder


def test_the_default_folder_names_the_experiment(tmp_path: Path) -> None:
    with opened(None, runs=tmp_path / "runs") as one, opened(None, runs=tmp_path / "runs") as other:
        assert one.path.parent == tmp_path / "runs"
        assert one.path.name == one.run
        assert one.run.startswith("quick-start-20")
        assert one.path != other.path


def test_a_folder_above_the_current_one_is_named_from_the_root_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    current = tmp_path / "current"
    current.mkdir()
    monkeypatch.chdir(current)
    with opened(Path("../run")) as folder:
        assert folder.path == tmp_path / "run"
    with opened(Path("run")) as folder:
        assert folder.path == Path("run")


@pytest.mark.parametrize("has_record", [True, False])
def test_a_folder_with_repeats_is_left_alone_without_resume(run: RunFolder, has_record: bool) -> None:
    if has_record:
        run.append(made_record("a"))
    else:
        run.begin_repeat("a", 0)
    run.close()
    with pytest.raises(UsageError, match=r"out: .* is not empty; add --resume") as caught:
        opened(run.path)
    assert caught.value.exit_status == EXIT_USAGE


def test_a_new_folder_of_a_refused_run_is_removed_and_an_older_one_stays(tmp_path: Path) -> None:
    def refused(path: Path) -> None:
        with opened(path) as folder:
            assert folder.cases.is_dir()
            if path == begun:
                folder.begin_repeat("a", 0)
            raise UsageError("refused")

    new, older, begun = (tmp_path / name for name in ("new", "older", "begun"))
    older.mkdir()
    for path in (new, older, begun):
        with pytest.raises(UsageError, match="refused"):
            refused(path)
    assert [path.exists() for path in (new, older, begun)] == [False, True, True]


def test_a_folder_of_a_run_that_was_refused_is_taken_by_the_corrected_command(run: RunFolder) -> None:
    _ = run.cases
    (run.path / "logs").mkdir()
    (run.path / "logs" / "fork-server-0.log").write_text("refused\n")
    run.close()
    with open_run(run.path, experiment={"name": "corrected"}, environment={}) as folder:
        assert folder.records == ()
        assert folder.run.startswith("corrected-")


def test_files_that_no_run_has_made_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine\n")
    with pytest.raises(UsageError, match="is not empty"):
        opened(tmp_path)


def test_resume_says_what_is_done_and_tries_the_rest_again(run: RunFolder) -> None:
    run.append(made_record("a"))
    run.append(made_record("b", status="failed", error=Failure(type="worker-died", message="m", stage="run")))
    run.append(made_record("c", status="implausible"))
    run.append(made_record("d", status="skipped"))
    run.close()
    with opened(run.path, resume=True) as again:
        assert again.run == run.run
        assert again.done == {("a", 0), ("c", 0)}
        again.append(made_record("b", examples_per_s=5.0))
        assert again.done == {("a", 0), ("b", 0), ("c", 0)}
    stored = load_run(run.path)
    assert [(item.case, item.status) for item in stored.records][:2] == [("a", "ok"), ("b", "ok")]
    assert stored.n_superseded == 1
    assert len((run.path / "results.jsonl").read_text().splitlines()) == 5


def test_resume_of_nothing_starts_a_run(tmp_path: Path) -> None:
    with opened(tmp_path / "new", resume=True) as folder:
        assert folder.done == frozenset()


def test_resume_needs_the_same_experiment(run: RunFolder) -> None:
    run.append(made_record("a"))
    run.close()
    with pytest.raises(UsageError, match="--resume needs the same experiment"):
        open_run(run.path, experiment={"name": "other"}, environment={}, resume=True)


def test_a_corrected_experiment_takes_up_a_folder_without_results(run: RunFolder) -> None:
    run.close()
    with open_run(run.path, experiment={"name": "other"}, environment={}, resume=True) as folder:
        assert folder.run != run.run
        folder.append(made_record("a"))
    assert load_run(run.path).experiment == {"name": "other"}
    with open_run(run.path, experiment={"name": "other"}, environment={}, resume=True) as again:
        assert again.run == folder.run


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"schema": 99}, "newer stratbench"),
        ({"schema": "x"}, "schema"),
        ({"run": None}, "'run'"),
        ({"spec_hash": 3}, "'spec_hash'"),
    ],
)
def test_a_damaged_head_is_named(run: RunFolder, damage: dict[str, object], message: str) -> None:
    run.close()
    file = run.path / "run.json"
    file.write_text(json.dumps(with_checksum(without_checksum(json.loads(file.read_text())) | damage)))
    with pytest.raises(StoreError, match=message):
        opened(run.path, resume=True)
    (item,) = load_run(run.path).damaged
    assert item.where == "run.json"
    assert re.search(message, item.why)


@pytest.mark.parametrize("name", ["run.json", "environment.json", "experiment.yaml"])
@pytest.mark.parametrize("garbage", [b"\xff\xfe: [}", b"[" * 200_000, b"a: 2020-13-45", b"9" * 5000])
def test_garbage_in_place_of_a_document_is_named(run: RunFolder, name: str, garbage: bytes) -> None:
    run.close()
    (run.path / name).write_bytes(garbage)
    (item,) = load_run(run.path).damaged
    assert item.where == name
    assert item.why.endswith("; shown as missing")


def test_resume_refuses_a_folder_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UsageError, match="is not a run folder"):
        opened(tmp_path, resume=True)
    assert (tmp_path / "thesis.tex").read_text() == "x"


def test_resume_takes_up_a_folder_whose_description_was_cut_short(run: RunFolder) -> None:
    run.close()
    (run.path / "run.json").unlink()
    (run.path / "results.jsonl").unlink()
    (run.path / "results.index").unlink()
    (run.path / ".run.json.0badcafe.tmp").write_text("{")
    with opened(run.path, resume=True) as again:
        again.append(made_record())
    assert load_run(run.path).run == again.run


def test_resume_removes_what_was_being_written(run: RunFolder) -> None:
    run.append(made_record())
    mine = run.repeat_dir("case", 0) / ".notes.tmp"
    mine.write_text("x")
    cut_short = [
        run.repeat_dir("case", 0) / ".plan.json.0badcafe.tmp",
        run.path / ".report.html.0badcafe.tmp",
    ]
    for path in cut_short:
        path.write_text("{")
    run.close()
    with opened(run.path, resume=True):
        assert [path.exists() for path in cut_short] == [False, False]
    assert mine.exists()


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_last_line_is_put_aside_and_nothing_else(run: RunFolder, cut: int) -> None:
    run.append(made_record("a"))
    run.append(made_record("b"))
    run.close()
    torn = to_json(made_record("c")).encode()[:-cut]
    results = run.path / "results.jsonl"
    whole = results.read_bytes()
    results.write_bytes(whole + torn)

    assert load_run(run.path).torn
    assert results.read_bytes() == whole + torn
    with opened(run.path, resume=True) as again:
        assert again.done == {("a", 0), ("b", 0)}
        again.append(made_record("c"))
        assert again.put_aside == ()
    assert (run.path / "results.jsonl.damaged").read_bytes() == torn + b"\n"
    assert [item.case for item in load_run(run.path).records] == ["a", "b", "c"]


def test_a_whole_line_that_lacks_its_newline_is_kept(run: RunFolder) -> None:
    run.append(made_record("a"))
    run.close()
    results = run.path / "results.jsonl"
    os.truncate(results, results.stat().st_size - 1)
    assert [item.case for item in load_run(run.path).records] == ["a"]
    with opened(run.path, resume=True) as again:
        again.append(made_record("b"))
    assert not (run.path / "results.jsonl.damaged").exists()
    assert [item.case for item in load_run(run.path).records] == ["a", "b"]


def test_zeros_left_by_a_power_failure_are_put_aside(run: RunFolder) -> None:
    run.append(made_record("a"))
    run.close()
    results = run.path / "results.jsonl"
    results.write_bytes(results.read_bytes() + b"\0" * 64 + b"\n")
    with opened(run.path, resume=True) as again:
        assert again.done == {("a", 0)}
    assert results.read_bytes().count(b"\0") == 0


def test_damaged_lines_are_named_put_aside_and_run_again(run: RunFolder) -> None:
    for case in "abc":
        run.append(made_record(case, examples_per_s=100.0))
    run.close()
    results = run.path / "results.jsonl"
    first, second, third = results.read_bytes().splitlines(keepends=True)
    changed = second.replace(b"100.0", b"900.0")
    results.write_bytes(b"oops\n" + first + changed + third)
    stored = load_run(run.path)
    assert [item.case for item in stored.records] == ["a", "c"]
    assert [item.where for item in stored.damaged] == ["results.jsonl line 1", "results.jsonl line 3"]
    assert "checksum: must be" in stored.damaged[1].why
    assert results.read_bytes() == b"oops\n" + first + changed + third
    with opened(run.path, resume=True) as again:
        assert again.done == {("a", 0), ("c", 0)}
        assert [line.number for line in again.put_aside] == [1, 3]
        again.append(made_record("b", examples_per_s=100.0))
    assert (run.path / "results.jsonl.damaged").read_bytes() == b"oops\n" + changed
    stored = load_run(run.path)
    assert ([item.case for item in stored.records], stored.damaged) == (["a", "c", "b"], ())


def test_a_line_with_a_damaged_field_is_read_without_it_and_run_again(run: RunFolder) -> None:
    for case in "ab":
        run.append(made_record(case, examples_per_s=100.0))
    run.close()
    results = run.path / "results.jsonl"
    first, second = results.read_bytes().splitlines(keepends=True)
    document = without_checksum(json.loads(first)) | {"examples_per_s": "fast", "loss": "x"}
    changed = json.dumps(with_checksum(document)).encode() + b"\n"
    results.write_bytes(changed + second)
    stored = load_run(run.path)
    assert [(record.case, record.examples_per_s) for record in stored.records] == [("a", None), ("b", 100.0)]
    assert len(stored.damaged) == 2
    with opened(run.path, resume=True) as again:
        assert again.done == {("b", 0)}
    assert (run.path / "results.jsonl.damaged").read_bytes() == changed
    assert results.read_bytes() == second


def test_results_of_a_later_version_are_neither_read_nor_put_aside(run: RunFolder) -> None:
    run.append(made_record("a"))
    run.close()
    results = run.path / "results.jsonl"
    later = (
        json.dumps(with_checksum(without_checksum(json.loads(results.read_text())) | {"schema": 99})) + "\n"
    )
    results.write_text(later)
    with pytest.raises(StoreError, match=r"results\.jsonl line 1: schema: .*newer stratbench"):
        opened(run.path, resume=True)
    stored = load_run(run.path)
    assert stored.records == ()
    assert "newer stratbench" in stored.damaged[0].why
    assert results.read_text() == later
    # The failed opening lets go of the folder.
    results.write_text("")
    (run.path / "results.index").unlink()
    opened(run.path, resume=True).close()


def test_a_record_holds_the_checksums_of_its_own_files(run: RunFolder) -> None:
    file = run.write_plan("a", 0, {"x": 1})
    run.append(made_record("a"))
    run.append(made_record("b"))
    first, second = run.records
    assert first.file_checksums == {"plan.json": hashlib.sha256(file.read_bytes()).hexdigest()}
    assert second.file_checksums == {}


def test_a_folder_older_than_checksums_is_read_as_it_is(run: RunFolder) -> None:
    run.append(made_record("a", schema=1))
    run.close()
    for name in ("run.json", "environment.json", "results.jsonl"):
        file = run.path / name
        document = without_checksum(json.loads(file.read_text()))
        file.write_text(json.dumps(document | ({"schema": 1} if name == "run.json" else {})) + "\n")
    stored = load_run(run.path)
    assert (stored.records, stored.damaged) == ((made_record("a", run=run.run, schema=1),), ())
    assert (stored.experiment, stored.environment) == (EXPERIMENT, {"machine": {}})
    with opened(run.path, resume=True) as again:
        assert again.done == {("a", 0)}


def _hold(path: str, ready: Any, release: Any) -> None:
    with open_run(Path(path), experiment=EXPERIMENT, environment={}):
        ready.set()
        release.wait(120)


def test_two_processes_never_share_a_folder(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, release = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(str(tmp_path / "run"), ready, release))
    other.start()
    try:
        assert ready.wait(120)
        with pytest.raises(UsageError, match="in use by another run"):
            opened(tmp_path / "run", resume=True)
    finally:
        release.set()
        other.join(120)
    opened(tmp_path / "run", resume=True).close()


def test_a_path_that_cannot_be_a_folder_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="out: the run folder must be writable"):
        opened(tmp_path / "file" / "run")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_folder_is_a_usage_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError, match="out: the run folder must be writable"):
        opened(tmp_path / "run")


def test_a_folder_that_was_removed_takes_no_more_results(run: RunFolder) -> None:
    run.append(made_record("a"))
    shutil.rmtree(run.path)
    with pytest.raises(
        StoreError, match=r"results.jsonl must stay where it is .* got it removed; begin again"
    ):
        run.append(made_record("b"))


def test_a_line_that_does_not_fit_leaves_the_lines_before_it(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.append(made_record("a"))
    write = os.write
    room = [10]

    def write_until_full(descriptor: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(28, "No space left on device")
        n_written = write(descriptor, data[: room[0]])
        room[0] -= n_written
        return n_written

    monkeypatch.setattr("harness.records.run_folder.os.write", write_until_full)
    with pytest.raises(StoreError, match="must take another line, got No space left on device"):
        run.append(made_record("b"))
    monkeypatch.undo()
    run.append(made_record("c"))
    stored = load_run(run.path)
    assert ([item.case for item in stored.records], stored.torn) == (["a", "c"], False)


def test_what_a_path_holds_that_is_no_text_does_not_end_a_run(run: RunFolder) -> None:
    odd = "/data/caf\udce9.dat"
    error = ValueError(f"must be a file, got {odd}")
    error.add_note(f"open({odd!r})")
    run.write_failure("a", 0, error)
    assert "caf\\udce9" in (run.repeat_dir("a", 0) / "failure.log").read_text()
    failure = Failure(type="user-error", message=str(error), stage="run")
    run.append(made_record("a", status="failed", error=failure, workload_params={"data": odd}))
    (stored,) = load_run(run.path).records
    assert stored.workload_params == {"data": "/data/caf\\udce9.dat"}
    assert stored.error is not None
    assert "caf\\udce9" in stored.error.message


def test_an_attempt_that_was_cut_short_leaves_nothing_to_the_next(run: RunFolder) -> None:
    run.write_trace("a", 0, {"traceEvents": []})
    error = ValueError("of the first attempt")
    error.add_note("its log")
    run.write_failure("a", 0, error)
    run.begin_repeat("a", 0)
    assert not list(run.repeat_dir("a", 0).iterdir())


def test_what_is_forgotten_is_to_be_run_again(run: RunFolder) -> None:
    superseded, first, second = made_record("a", examples_per_s=1.0), made_record("a"), made_record("b")
    for record in (superseded, first, second):
        run.append(record)
    run.forget([first])
    assert run.done == {("b", 0)}
    run.append(made_record("a", examples_per_s=5.0))
    assert run.done == {("a", 0), ("b", 0)}


def test_what_is_forgotten_counts_for_no_reader_of_the_folder(run: RunFolder) -> None:
    superseded, last = made_record("a", examples_per_s=1.0), made_record("a")
    for record in (superseded, made_record("b"), last):
        run.append(record)
    line, _, newer_line = (run.path / "results.jsonl").read_bytes().splitlines(keepends=True)
    run.forget([run.records[0]])
    # As after Ctrl-C before any of them has run again.
    assert [record.case for record in load_run(run.path).records] == ["b"]
    assert (run.path / "results.jsonl.outdated").read_bytes() == line + newer_line
    run.append(made_record("c"))
    run.forget([made_record("c")])
    assert [record.case for record in load_run(run.path).records] == ["b"]
    assert len((run.path / "results.jsonl.outdated").read_bytes().splitlines()) == 3
    run.close()
    with opened(run.path, resume=True) as again:
        assert again.done == {("b", 0)}


def _three_records(run: RunFolder) -> Path:
    for case in ("a", "b", "c"):
        run.append(made_record(case, run=run.run))
    run.close()
    return run.path / "results.jsonl"


@pytest.mark.parametrize("lines_left", [slice(0, 0), slice(1, None), slice(0, 2)])
def test_a_line_that_was_removed_is_named_and_nothing_begins_anew(run: RunFolder, lines_left: slice) -> None:
    results = _three_records(run)
    results.write_bytes(b"".join(results.read_bytes().splitlines(keepends=True)[lines_left]))
    left = results.read_bytes()
    with pytest.raises(
        StoreError, match=r"results\.jsonl must hold \d more records?, of [abc]/0.*put back a copy"
    ):
        opened(run.path, resume=True)
    assert results.read_bytes() == left
    (run.path / "results.index").unlink()
    opened(run.path, resume=True).close()


def test_results_that_are_gone_are_named(run: RunFolder) -> None:
    _three_records(run).unlink()
    with pytest.raises(StoreError, match="must hold 3 more records, of a/0, b/0, c/0"):
        opened(run.path, resume=True)


def test_results_without_an_index_are_lost_where_steps_lie(run: RunFolder) -> None:
    _three_records(run).unlink()
    (run.path / "results.index").unlink()
    run.repeat_dir("a", 0)
    opened(run.path, resume=True).close()
    (run.path / "results.index").unlink()
    (run.path / "cases" / "a" / "0" / "steps.parquet").touch()
    with pytest.raises(
        StoreError, match=r"must hold the records of the repeats that cases has the steps of, got none"
    ):
        opened(run.path, resume=True)


def test_a_line_that_was_cut_is_damaged_and_not_torn(run: RunFolder) -> None:
    results = _three_records(run)
    os.truncate(results, results.stat().st_size - 30)
    with opened(run.path, resume=True) as again:
        assert [(line.number, line.why) for line in again.put_aside] == [
            (3, ("cut short after it was written",))
        ]
        assert [record.case for record in again.records] == ["a", "b"]
    # What was put aside is lost no more.
    opened(run.path, resume=True).close()


def test_a_whole_line_that_is_too_long_is_damaged_and_not_torn(run: RunFolder) -> None:
    results = _three_records(run)
    with results.open("ab") as stream:
        stream.write(b"x" * (MOST_LINE_BYTES + 10) + b"\n")
    stored = load_run(run.path)
    assert not stored.torn
    assert [damage.why for damage in stored.damaged if damage.where.endswith("line 4")] == [
        "a line of results.jsonl must be at most 16,777,216 bytes, got more; the line is left out"
    ]


@pytest.mark.parametrize(
    "line", [f"a/{'9' * 5000}", "a/²", "a/١", "a/-1", "/0", "a", "a/b/0", "\x1b[31m/0", ""]
)
def test_an_index_with_another_line_is_damaged(run: RunFolder, line: str) -> None:
    _three_records(run)
    index = run.path / "results.index"
    index.write_text(f"{index.read_text()}{line}\n", encoding="utf-8")
    with pytest.raises(StoreError, match=r"results\.index must hold lines as .* in line 4; put back a copy"):
        opened(run.path, resume=True)
    (lost,) = load_run(run.path).damaged
    assert lost.where == "results.index"


@pytest.mark.parametrize(
    "replace",
    [
        lambda index: index.symlink_to("results.jsonl"),
        os.mkfifo,
        Path.mkdir,
        lambda index: index.symlink_to("x"),
    ],
)
def test_an_index_that_is_no_file_is_damaged(run: RunFolder, replace: Callable[[Path], object]) -> None:
    _three_records(run)
    (run.path / "results.index").unlink()
    replace(run.path / "results.index")
    (lost,) = load_run(run.path).damaged
    assert lost.where == "results.index"
    assert lost.why.startswith("must be a file or folder of its own, got ")


@pytest.mark.parametrize("after", ["results", "index"])
def test_a_run_killed_while_it_records_has_lost_nothing(run: RunFolder, after: str) -> None:
    _three_records(run)
    index = run.path / "results.index"
    whole = index.read_bytes()
    index.write_bytes(whole[: whole.rindex(b"c")] + (b"c/" if after == "index" else b""))
    with opened(run.path, resume=True) as again:
        assert len(again.records) == 3
        again.append(made_record("d", run=again.run))
    assert index.read_text() == "a/0\nb/0\nc/0\nd/0\n"


@pytest.mark.parametrize("name", ["environment.json", "experiment.yaml"])
def test_a_document_that_is_gone_stops_resume(run: RunFolder, name: str) -> None:
    run.append(made_record("a", run=run.run))
    run.close()
    (run.path / name).unlink()
    with pytest.raises(StoreError, match=name):
        opened(run.path, resume=True)


@pytest.mark.parametrize(
    "link", [".lock", "cases", "cases/a", "cases/a/0/worker-0.log", "logs", "results.index"]
)
def test_nothing_is_written_through_a_link(run: RunFolder, link: str, tmp_path: Path) -> None:
    run.worker_log("a", 0, 0).touch()
    run.append(made_record("a", run=run.run))
    run.close()
    outside, path = tmp_path / "outside", run.path / link
    outside.mkdir()
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    (outside / "kept").write_text("kept")
    path.symlink_to(outside if link in ("cases", "cases/a", "logs") else outside / "kept")
    with pytest.raises(StoreError, match=rf"{link} must be a file .*own, got a symbolic link"):
        opened(run.path, resume=True)
    assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("kept", "kept")]


def test_results_of_another_run_are_not_gone_on_with(run: RunFolder, tmp_path: Path) -> None:
    results = _three_records(run)
    with opened(tmp_path / "other") as other:
        other.append(made_record("a"))
    shutil.copy(other.path / "results.jsonl", results)
    (run.path / "results.index").unlink()
    with pytest.raises(StoreError, match=f"records of the run {run.run}, .*got one of '{other.run}'"):
        opened(run.path, resume=True)


A, B, C = (default_name(name, datetime(2026, 1, 1, tzinfo=UTC)) for name in ("a", "b", "c"))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    # Names do not tell which is older. A person has named one, the oldest of all.
    for name, created in ((A, "2026-01-03"), (B, "2026-01-01"), (C, "2026-01-02"), ("mine", "2025-01-01")):
        (tmp_path / name / "cases").mkdir(parents=True)
        (tmp_path / name / "cases" / "file").touch()
        head = {"schema": 2, "run": name, "spec_hash": "", "created_utc": created}
        (tmp_path / name / RUN_FILE).write_text(json.dumps(with_checksum(head)))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").touch()
    return tmp_path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(("keep", "left"), [(0, []), (1, [A]), (2, [A, C]), (3, [A, B, C]), (9, [A, B, C])])
def test_the_newest_stay_and_nobody_elses_folder_is_touched(runs: Path, keep: int, left: list[str]) -> None:
    files = sorted(runs.rglob("*"))
    would = remove_old_runs(runs, keep, dry_run=True)
    assert sorted(runs.rglob("*")) == files
    assert names(runs) == [A, B, C, "mine", "notes"]
    removed = remove_old_runs(runs, keep)
    assert removed == would
    assert names(runs) == [*left, "mine", "notes"]
    assert [path.name for path in removed.folders] == [name for name in (B, C, A) if name not in left]


def test_a_run_that_goes_on_stays(runs: Path) -> None:
    lock = lock_folder(runs / B)
    try:
        would = remove_old_runs(runs, 0, dry_run=True)
        assert [path.name for path in would.folders] == [C, A]
        assert remove_old_runs(runs, 0) == would
    finally:
        os.close(lock)
    assert (runs / B / "cases" / "file").exists()


def test_a_link_to_a_run_is_not_another_one(runs: Path) -> None:
    (runs / "latest").symlink_to(runs / A)
    assert [path.name for path in remove_old_runs(runs, 1).folders] == [B, C]
    assert (runs / "latest" / "cases" / "file").exists()


def test_no_folder_of_runs_is_no_error(tmp_path: Path) -> None:
    assert remove_old_runs(tmp_path / "runs", 1) == RemovedRuns()


def test_a_run_whose_age_is_damaged_stays_and_is_named(runs: Path) -> None:
    file = runs / A / RUN_FILE
    file.write_text(file.read_text().replace("2026", "2006"))
    removed = remove_old_runs(runs, 1)
    assert [path.name for path in removed.folders] == [B]
    assert names(runs) == [A, C, "mine", "notes"]
    (why,) = removed.undated
    assert why.startswith(f"{file}: checksum: must be ")
