"""Files that a person names: records are never overwritten, links followed, pipes and devices written to."""

import os
import stat
import subprocess
import threading
from pathlib import Path

import pytest
from synthetic_run import Case, write_run

from harness.atomic_files import write_bytes, write_output
from harness.cli import main
from harness.cli.output_files import is_stdout, output_file
from harness.errors import UsageError
from harness.processes import module_command
from reports.history.database import DATABASE, LOCK

CSV = ("--format", "csv")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", [Case(workload="w", strategy="ps")], seed=1)


@pytest.mark.parametrize(
    "name",
    [
        "results.jsonl",
        "run.json",
        "experiment.yaml",
        "environment.json",
        "results.index",
        "results.jsonl.damaged",
        ".lock",
        "cases/new.csv",
        "logs/new.csv",
    ],
)
@pytest.mark.parametrize("by_link", [False, True])
def test_a_report_never_overwrites_what_it_is_made_of(
    run: Path, capsys: pytest.CaptureFixture[str], name: str, *, by_link: bool
) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    out = run / name
    if by_link:
        out = run.parent / "link"
        out.symlink_to(run / name)
    assert main(["report", str(run), *CSV, "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert error == f"stratbench: out: {out} belongs to a run and is never overwritten; name another\n"
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_other_names_in_a_run_folder_are_free(run: Path) -> None:
    for out in (run / "report.csv", run / "report.html", run.parent / "results.jsonl"):
        assert main(["report", str(run), *CSV, "--out", str(out)]) == 0
        assert out.read_text().startswith("run")


@pytest.mark.parametrize(
    "arguments",
    [
        ["transform", "wide-mlp", "-s", "ps", "--graphdef"],
        ["transform", "wide-mlp", "-s", "ps", "--stages"],
        ["nightly", "run", "quickstart", "--store", "store", "--prometheus"],
        ["nightly", "ack", "quickstart", "ps", "--reason", "x", "--store", "store", "--prometheus"],
        ["recommend", "wide-mlp", "--out"],
    ],
)
def test_every_option_that_names_a_file_refuses_records(
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
) -> None:
    monkeypatch.chdir(run.parent)
    before = (run / "run.json").read_bytes()
    name = "new" if "--stages" in arguments else "plan.json"
    out = run / "cases" / name if "--prometheus" not in arguments else run / "run.json"
    assert main([*arguments, str(out)]) == 2
    error = capsys.readouterr().err
    assert "belongs to a run and is never overwritten" in error
    assert error.count("\n") == 1
    assert (run / "run.json").read_bytes() == before


def test_a_history_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / DATABASE).touch()
    for name in (DATABASE, LOCK, f"{DATABASE}-wal"):
        with pytest.raises(UsageError, match="belongs to a history of nights"):
            output_file(tmp_path / name, field="prometheus")


def test_a_pipe_is_written_to_and_stays_one(run: Path, tmp_path: Path) -> None:
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()), daemon=True)
    reader.start()
    assert main(["report", str(run), *CSV, "--out", str(pipe)]) == 0
    reader.join(60)
    assert got
    assert got[0].startswith("run")
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_device_is_written_to_by_its_link(tmp_path: Path) -> None:
    # Never a device itself: a mistake here would replace it.
    link = tmp_path / "link"
    link.symlink_to(os.devnull)
    assert output_file(link, field="out") == Path(os.devnull)
    write_output(link, b"x")
    assert link.is_symlink()


def test_a_link_that_a_person_names_is_followed(run: Path, tmp_path: Path) -> None:
    link, target = tmp_path / "link", tmp_path / "target.csv"
    link.symlink_to(target)
    for _ in range(2):
        assert main(["report", str(run), *CSV, "--out", str(link)]) == 0
        assert link.is_symlink()
        assert target.read_text().startswith("run")


def test_a_link_in_place_of_a_run_folders_report_is_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, page = tmp_path / "target", run / "report.html"
    target.write_text("mine")
    page.unlink(missing_ok=True)
    page.symlink_to(target)
    assert main(["report", str(run)]) == 2
    assert f"{page} cannot be written: a link, pipe or device has its name" in capsys.readouterr().err
    assert (page.is_symlink(), target.read_text()) == (True, "mine")


def test_a_file_of_ours_replaces_no_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileExistsError):
        write_bytes(tmp_path / "pipe", b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_standard_output_has_the_answer_alone(run: Path, tmp_path: Path) -> None:
    command = module_command("harness.cli", "report", str(run), *CSV)
    plain = subprocess.run(command, capture_output=True, check=True, timeout=120).stdout
    named = subprocess.run(
        [*command, "--out", "/dev/stdout"], capture_output=True, check=True, timeout=120
    ).stdout
    assert named == plain
    with (tmp_path / "x.csv").open("wb") as file:
        subprocess.run([*command, "--out", "/dev/stdout"], stdout=file, check=True, timeout=120)
    assert (tmp_path / "x.csv").read_bytes() == plain


def test_a_descriptor_is_named_so_that_other_processes_reach_it(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as read, os.fdopen(writing, "wb"):
        path = output_file(Path(f"/dev/fd/{writing}"), field="graphdef")
        assert path == Path(f"/proc/{os.getpid()}/fd/{writing}")
        subprocess.run(["sh", "-c", f"echo hello > {path}"], check=True, timeout=60)
        assert read.readline() == b"hello\n"
    assert not is_stdout(tmp_path / "absent")
