"""Reports of several runs: a reader always knows of which one something is told, and what else to ask."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import shlex
import shutil
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from synthetic_run import DIED, SINGLE, Case, write_run

import reports
from harness.cli import main
from harness.records.checksums import with_checksum, without_checksum
from harness.records.outcome import Aggregated, Evaluation
from reports.compare import build
from reports.load import load
from reports.pages.markdown import markdown_text

CASES = [Case(workload="w", **SINGLE), Case(workload="w", strategy="ps", problems={1: ("failed", DIED)})]


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    return [write_run(tmp_path / name, CASES, seed=i) for i, name in enumerate(("monday", "tuesday"))]


def test_every_format_says_of_which_run_something_is(runs: list[Path]) -> None:
    names = [load(run).name for run in runs]
    assert len(set(names)) == 2
    markdown = reports.render(runs, "md")
    page = reports.render(runs, "html")
    for run in runs:
        # The folder is what readers know, the name what records have.
        name = f"{run.name} ({load(run).name})"
        assert markdown.count(markdown_text(f"batch 64 · run {name}")) == 1
        assert page.count(f"batch 64 · run {name}</p>") == 1
    rows = list(csv.DictReader(io.StringIO(reports.render(runs, "csv"))))
    assert {row["run"] for row in rows} == set(names)
    root = ET.fromstring(reports.render(runs, "junit"))
    tests = {(case.get("classname"), case.get("name")) for case in root.iter("testcase")}
    assert len(tests) == 2 * len(CASES)


def test_failures_name_their_runs_where_there_are_several(runs: list[Path]) -> None:
    several = json.loads(reports.render(runs, "json"))["problems"]
    assert {problem["run"] for problem in several} == {load(run).name for run in runs}
    assert "| strategy | workload | run | repeats |" in reports.render(runs, "md")
    assert "| strategy | workload | repeats |" in reports.render(runs[:1], "md")


def test_the_title_counts_runs(runs: list[Path]) -> None:
    assert reports.render(runs, "md").startswith("# synthetic, 2 runs\n")
    assert reports.render(runs[:1], "md").startswith("# synthetic\n")


def test_runs_of_one_experiment_are_better_compared(
    runs: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = "stratbench compare monday tuesday"
    # As they were typed, so that they can be pasted.
    assert json.loads(reports.render(runs, "json"))["hints"][0].endswith(f"compare {runs[0]} {runs[1]}")
    # By the time at which they were made, not by the order in which they are named.
    head = json.loads((runs[0] / "run.json").read_text())
    (runs[0] / "run.json").write_text(
        json.dumps(with_checksum(without_checksum(head) | {"created_utc": "2020-01-01T00:00:00Z"}))
    )
    monkeypatch.chdir(runs[0].parent)
    assert main(["report", "tuesday", "monday", "--format", "csv"]) == 0
    assert command in capsys.readouterr().err
    assert main(["report", "monday", "--format", "csv"]) == 0
    assert "compare" not in capsys.readouterr().err
    experiment = runs[1] / "experiment.yaml"
    experiment.write_text(experiment.read_text().replace("name: synthetic", "name: other"))
    assert json.loads(reports.render(runs, "json"))["hints"] == []


def test_folders_that_a_shell_would_take_apart_are_quoted(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, CASES, seed=i) for i, name in enumerate(("of monday", "of tuesday"))]
    (hint,) = json.loads(reports.render(runs, "json"))["hints"]
    assert shlex.split(hint.partition("stratbench compare ")[2]) == list(map(str, runs))


def test_one_run_is_not_told_from_others(runs: list[Path]) -> None:
    name = load(runs[0]).name
    text = reports.render(runs[:1], "md")
    assert markdown_text(name) in text
    assert markdown_text(f"({name})") not in text
    assert f"({name})" not in reports.render(runs[:1], "html")


def test_a_run_in_a_folder_of_its_own_name_is_named_once(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name, CASES, seed=i) for i, name in enumerate(("one", "other"))]
    run = folders[0].rename(tmp_path / load(folders[0]).name)
    (origin, _) = build([load(run), load(folders[1])]).origins
    assert origin.folder == origin.run
    assert markdown_text(f"({origin.run})") not in reports.render([run, folders[1]], "md")


def test_runs_without_a_case_in_common_have_nothing_to_compare(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, [Case(workload=name, strategy="ps")]) for name in ("one", "other")]
    assert json.loads(reports.render(runs, "json"))["hints"] == []


def test_a_run_that_is_named_twice_is_refused(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # which has no probes, with which missing predictions would be noted
    assert main(["report", str(runs[0]), str(runs[0]), "--format", "md"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"run_dirs: must differ from each other, got {runs[0]} twice; name each run once")


def test_each_run_has_its_own_baseline(tmp_path: Path) -> None:
    second = [dataclasses.replace(case, workload="v") for case in CASES]
    one, other = (
        write_run(tmp_path / name, cases, baseline=baseline)
        for name, cases, baseline in (("one", CASES, "single"), ("other", second, "ps"))
    )
    text = reports.render([one, other], "md")
    assert "| ÷ single |" in text
    assert "| ÷ ps |" in text


def scenario(strategy: str, name: str) -> Case:
    return Case(
        workload="v",
        strategy=strategy,
        class_="statistical",
        workers=5,
        scenario=name,
        faults=(f"worker 4: {name}",) if name else (),
        evaluation=Evaluation(step=105, metrics={"accuracy": 0.9}),
        aggregation=Aggregated(rule="median", n=5, f=2, n_faulty=int(bool(name)), selects=False),
    )


def test_copies_of_a_run_have_curves_of_their_own(tmp_path: Path) -> None:
    cases = [
        CASES[0],
        *(Case(workload="w", strategy="ps", workers=n) for n in (2, 4)),
        *(Case(workload="w", strategy="ps", workers=2, link_mbit=(mbit, mbit)) for mbit in (10.0, 100.0)),
        *(scenario("median", name) for name in ("", "sign-flip")),
    ]
    run = write_run(tmp_path / "runs" / "a", cases)
    copy = Path(shutil.copytree(run, tmp_path / "backup" / "a"))
    alone, both = build([load(run)]), build([load(run), load(copy)])
    assert len(alone.scaling) == len(alone.link_sensitivity) == len(alone.fault_matrices) == 1
    assert both.scaling == alone.scaling * 2
    assert both.link_sensitivity == alone.link_sensitivity * 2
    assert both.fault_matrices == alone.fault_matrices * 2


def test_a_failure_of_single_is_listed_once_in_each_run(tmp_path: Path) -> None:
    cases = [
        Case(workload="w", problems={1: ("failed", DIED)}, **SINGLE),
        *(Case(workload="w", strategy="ps", workers=n) for n in (2, 4)),
    ]
    run = write_run(tmp_path / "runs" / "a", cases)
    copy = Path(shutil.copytree(run, tmp_path / "backup" / "a"))
    report = build([load(run)])
    assert len(report.comparisons) == 2
    assert [(problem.strategy, problem.repeats, problem.run) for problem in report.problems] == [
        ("single", (1,), "")
    ]
    name = load(run).name
    both = build([load(run), load(copy)])
    assert [(problem.strategy, problem.run) for problem in both.problems] == [("single", name)] * 2
