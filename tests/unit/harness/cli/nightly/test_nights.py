"""Nights as they are run, imported, replayed and acknowledged, with runs that are made up."""

import errno
import json
import os
import re
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from synthetic_run import DIED, Case, Failure, write_run

import harness.cli.nightly.nights  # noqa: F401 - which has the real pipeline then, not the fake one of a test
from harness import pipeline
from harness.canonical import canonical_hash
from harness.cli import main
from harness.cli.nightly.publishing import PublishedNight, night_answer
from harness.errors import CaseError, Interrupted, StoreError
from harness.experiment.load import load_experiment
from harness.experiment.model import Experiment
from harness.pipeline import RunOutcome
from harness.records.checksums import with_checksum, without_checksum
from harness.records.run_documents import read_head
from harness.records.run_folder import open_run
from harness.requests import RunOptions
from reports.history.database import connected
from reports.history.figures import Figure, NewNight, Subject
from reports.history.store import reading, writing
from reports.history.verdicts import verdict_of

WAYS = ("run", "import", "ack", "replay", "bisect", "trend")
USUAL_S = {"single": 0.05, "ps": 0.04, "all-reduce": 0.03, "sharded-update": 0.025}


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    """Status, and what was printed."""
    status = main(arguments)
    return status, capsys.readouterr()


def command(experiment: str, store: Path | str, *arguments: str) -> list[str]:
    """A command line of `nightly`; it runs a night unless the first argument names a sub-command."""
    way, *rest = arguments if arguments and arguments[0] in WAYS else ("run", *arguments)
    isolation = ["--no-isolation"] if way == "run" else []
    return ["nightly", way, experiment, "--store", str(store), *isolation, *rest]


@pytest.fixture
def night(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., tuple[int, dict[str, Any]]]:
    """A night in which some strategies take longer: its exit status and document."""
    seeds = iter(range(1000))

    def make(
        *arguments: str,
        slower: dict[str, float] | None = None,
        without: str = "",
        wrong: str = "",
        failed: Sequence[str] = (),
        n_more: int = 0,
    ) -> tuple[int, dict[str, Any]]:
        def run(_spec: object, options: RunOptions) -> RunOutcome:
            assert options.out is not None
            cases = [
                Case(
                    workload="w",
                    strategy=name,
                    p50_s=s * (slower or {}).get(name, 1.0),
                    equivalent=name != wrong,
                    traced=False,
                    problems=dict.fromkeys(range(6), ("failed", DIED)) if name in failed else {},
                )
                for name, s in USUAL_S.items()
                if name != without
            ]
            cases += [Case(workload="w", strategy=f"s{k}", traced=False) for k in range(n_more)]
            seed = next(seeds)
            write_run(options.out, cases, seed=seed, minutes=(1.0, 1.2), experiment_name="quickstart")
            return RunOutcome(run_dir=options.out)

        monkeypatch.setattr(pipeline, "run", run)
        store = str(tmp_path / "store")
        status, captured = call(capsys, *command("quickstart", store, *arguments), "--json")
        return status, json.loads(captured.out)

    return make


def test_a_slowdown_is_pending_and_then_ends_with_4_until_it_is_known(
    night: Callable[..., tuple[int, dict[str, Any]]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for _ in range(12):
        status, output = night()
        assert status == 0
    assert output["series"]["regressed"] == 0
    status, output = night(slower={"ps": 1.5})
    assert (status, output["series"]["regressed"]) == (0, 0)
    assert output["series"]["pending"] >= 1
    first = output["night"]
    night(slower={"ps": 1.5})
    status, output = night(slower={"ps": 1.5})
    assert status == 4
    results = {regression["metric"]: regression for regression in output["regressions"]}
    assert results["ratio"]["strategy"] == "ps"
    assert results["ratio"]["since"] == first
    assert results["ratio"]["interval"]["low"] < 1 / 1.5 < results["ratio"]["interval"]["high"]
    assert output["causes"][0]["what"] == "ps on w"
    assert "ps on w" in output["verdict"]
    status, again = night("replay", output["night"])
    assert (status, again["verdict"]) == (4, output["verdict"])
    status, refused = night("ack", "pss", "--reason", "a slower lock")
    assert (status, refused["error"]["field"]) == (2, "ack")
    assert "did you mean 'ps'" in refused["error"]["message"]
    status, known = night("ack", "ps", "--reason", "a slower lock")
    assert (status, known["until"]) == (0, output["night"])
    status, output = night(slower={"ps": 1.5})
    assert (status, output["series"]["regressed"]) == (0, 0)
    assert output["series"]["known"] >= 1
    store = str(tmp_path / "store")
    status, captured = call(capsys, "nightly", "replay", "quickstart", "--store", store, output["night"])
    assert status == 0
    assert captured.out.startswith(f"{output['night']}: ")
    assert "a slower lock" in captured.out


def test_a_case_that_computes_something_else_fails_its_night_whether_run_replayed_or_imported(
    night: Callable[..., tuple[int, dict[str, Any]]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    prometheus, store = tmp_path / "night.prom", tmp_path / "store"
    for _ in range(12):
        night()
    status, output = night("--prometheus", str(prometheus), slower={"ps": 0.5}, wrong="ps")
    assert status == 1
    assert output["verdict"].endswith("5 missed, 14 ok, 1 without a figure. ps on w is not equivalent")
    (lost,) = output["lost"]
    assert (lost["status"], lost["message"]) == (
        "not-equivalent",
        "its result differs from a single-device run",
    )
    assert "Wrong results" in (store / "trend.html").read_text()
    metrics = prometheus.read_text()
    assert 'stratbench_nightly_cases_without_figure{experiment="quickstart"} 1.0' in metrics
    assert 'strategy="ps"' not in metrics
    status, captured = call(capsys, "nightly", "replay", "quickstart", "--store", str(store), output["night"])
    assert status == 1
    assert captured.out.splitlines()[0] == output["verdict"]
    assert captured.out.splitlines()[1].startswith("not-equivalent: ps on w · ")
    ps = Case(workload="w", strategy="ps", equivalent=False)
    run = write_run(tmp_path / "run", [ps], seed=99, experiment_name="quickstart")
    status, imported = night("import", str(run))
    assert (status, imported["lost"][0]["status"]) == (1, "not-equivalent")


@pytest.mark.parametrize("lost", [{"without": "ps"}, {"wrong": "ps"}, {"failed": tuple(USUAL_S)}])
def test_a_night_without_a_figure_leaves_a_regression_standing(
    night: Callable[..., tuple[int, dict[str, Any]]], tmp_path: Path, lost: dict[str, Any]
) -> None:
    prometheus = tmp_path / "night.prom"
    for k in range(15):
        status, before = night(slower={"ps": 1.5} if k >= 12 else None)
    assert status == 4
    status, output = night("--prometheus", str(prometheus), **lost)
    assert status == 4
    assert output["regressions"] == before["regressions"]
    assert output["causes"] == before["causes"]
    metrics = prometheus.read_text()
    assert 'stratbench_nightly_regressed{experiment="quickstart"} 1.0' in metrics
    assert "stratbench_nightly_regression_ratio{" in metrics
    assert not re.search('nightly_figure{.*strategy="ps"', metrics)
    assert night("replay", output["night"])[0] == 4


@pytest.mark.parametrize("failed", [("ps",), tuple(USUAL_S)])
def test_a_night_with_failed_cases_ends_with_1_whether_imported_or_replayed(
    night: Callable[..., tuple[int, dict[str, Any]]], tmp_path: Path, failed: tuple[str, ...]
) -> None:
    problems = dict.fromkeys(range(6), ("failed", DIED))
    cases = [
        Case(workload="w", strategy=name, traced=False, problems=problems if name in failed else {})
        for name in USUAL_S
    ]
    run = write_run(tmp_path / "run", cases, experiment_name="quickstart")
    status, output = night("import", str(run))
    assert (status, len(output["lost"])) == (1, len(failed))
    assert night("replay", output["night"])[0] == 1


def test_a_training_that_its_faults_break_costs_a_night_no_status(
    night: Callable[..., tuple[int, dict[str, Any]]], tmp_path: Path
) -> None:
    broken = Failure(type="non-finite-loss", message="under faults", stage="run")
    case = Case(
        workload="w",
        strategy="ps",
        traced=False,
        faults=("sign-flip",),
        problems=dict.fromkeys(range(6), ("failed", broken)),
    )
    run = write_run(tmp_path / "run", [case], experiment_name="quickstart")
    status, output = night("import", str(run))
    assert (status, output["lost"][0]["status"]) == (0, "broken-by-fault")


def test_a_run_without_a_record_that_can_be_read_is_no_night(
    night: Callable[..., tuple[int, dict[str, Any]]], tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", [Case(workload="w", strategy="ps", traced=False)])
    results = run / "results.jsonl"
    records = [
        {**without_checksum(json.loads(line)), "schema": 99} for line in results.read_text().splitlines()
    ]
    results.write_text("".join(f"{json.dumps(with_checksum(record))}\n" for record in records))
    status, refused = night("import", str(run))
    assert status == 2
    message = refused["error"]["message"]
    assert message.startswith(f"{run} has no record that can be read: results.jsonl line 1: ")
    assert "schema" in message
    status, _ = night("replay", "2026-01-01")
    assert status == 2


def test_each_night_writes_the_trend_page_and_names_it(
    night: Callable[..., tuple[int, dict[str, Any]]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    _, output = night()
    page = store / "trend.html"
    assert output["report"] == str(page)
    assert output["verdict"] in page.read_text()
    _, output = night()
    assert output["night"] in page.read_text()
    run = write_run(tmp_path / "r", [Case(workload="w", strategy="ps")], experiment_name="quickstart")
    for arguments in (["replay", output["night"]], ["import", str(run)]):
        page.unlink()
        _, again = night(*arguments)
        assert again["report"] == str(page)
        assert again["verdict"] in page.read_text()
    _, captured = call(capsys, "nightly", "replay", "quickstart", "--store", str(store), again["night"])
    assert captured.out.splitlines()[-1] == f"report: {page}"
    assert captured.err == ""
    assert not list(store.glob(".trend*"))


def test_a_page_that_cannot_be_written_costs_a_line_and_not_the_night(
    night: Callable[..., tuple[int, dict[str, Any]]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "store" / "trend.html"
    page.mkdir(parents=True)
    status, output = night()
    assert (status, output["report"]) == (0, None)
    status, captured = call(
        capsys, "nightly", "replay", "quickstart", "--store", str(page.parent), output["night"]
    )
    assert status == 0
    assert captured.out.startswith(f"{output['night']}: ")
    assert "report: " not in captured.out
    assert captured.err.count("\n") == 1
    assert f"{page} cannot be written (Is a directory)" in captured.err
    assert f"write its page with `nightly replay EXPERIMENT {output['night']}`" in captured.err


def test_a_night_is_written_for_prometheus_as_it_was_judged(
    night: Callable[..., tuple[int, dict[str, Any]]], tmp_path: Path
) -> None:
    page = tmp_path / "textfile" / "stratbench.prom"

    def values() -> dict[tuple[str, str, str], float]:
        families = text_string_to_metric_families(page.read_text())
        return {
            (
                s.name,
                s.labels.get("strategy") or s.labels.get("state", ""),
                s.labels.get("metric", ""),
            ): s.value
            for family in families
            for s in family.samples
        }

    for _ in range(12):
        night()
    night("--prometheus", str(page))
    usual = values()
    assert usual["stratbench_nightly_regressed", "", ""] == 0
    assert not any(name == "stratbench_nightly_regression_ratio" for name, *_ in usual)
    for _ in range(3):
        status, output = night("--prometheus", str(page), slower={"ps": 1.5})
    assert status == 4
    slower = values()
    assert slower["stratbench_nightly_regressed", "", ""] == 1
    for state, count in output["series"].items():
        assert slower["stratbench_nightly_series", state, ""] == count
    ratio = {regression["metric"]: regression["ratio"] for regression in output["regressions"]}["ratio"]
    assert slower["stratbench_nightly_regression_ratio", "ps", "ratio"] == pytest.approx(ratio)
    of_ps = "stratbench_nightly_figure", "ps", "rate"
    assert slower[of_ps] == pytest.approx(usual[of_ps] / 1.5, rel=0.1)
    first = output["night"].rpartition(".")[0] + ".13"
    night("replay", first, "--prometheus", str(page))
    assert values() == usual
    assert [path.name for path in page.parent.iterdir()] == [page.name]
    night("--prometheus", str(page), without="ps")
    missed = values()
    n_regressed = missed["stratbench_nightly_series", "regressed", ""]
    n_missed = missed["stratbench_nightly_series", "missed", ""]
    assert n_regressed == slower["stratbench_nightly_series", "regressed", ""]
    assert n_missed + n_regressed == len([k for k in usual if k[1] == "ps"])
    assert of_ps not in missed
    status, refused = night("replay", first, "--prometheus", str(tmp_path))
    assert (status, refused["error"]["field"]) == (2, "prometheus")


def test_a_file_for_prometheus_that_cannot_be_written_is_refused_before_a_night_runs(
    night: Callable[..., tuple[int, dict[str, Any]]], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "night.prom"):
        status, refused = night("--prometheus", str(path))
        assert (status, refused["error"]["field"]) == (2, "prometheus")
        assert f"{path} cannot be written: " in refused["error"]["message"]
    assert not (tmp_path / "store").exists()


def test_a_file_for_prometheus_that_fails_after_a_night_leaves_its_verdict_and_status(
    night: Callable[..., tuple[int, dict[str, Any]]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for k in range(16):
        _, output = night(slower={"ps": 1.5} if k >= 12 else None)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("harness.cli.nightly.publishing.write_output", full)
    path, store = tmp_path / "night.prom", str(tmp_path / "store")
    arguments = ["replay", output["night"], "--prometheus", str(path)]
    status, captured = call(capsys, *command("quickstart", store, *arguments))
    assert status == 4
    assert captured.out.startswith(f"{output['night']}: ")
    assert captured.err.count("\n") == 1
    assert f"{path} cannot be written (No space left on device)" in captured.err


def test_runs_that_are_there_become_nights_and_only_once(
    night: Callable[..., tuple[int, dict[str, Any]]], tmp_path: Path
) -> None:
    runs = [
        str(write_run(tmp_path / f"run-{k}", [Case(workload="w", strategy="ps")], seed=k)) for k in range(3)
    ]
    status, output = night("import", *runs)
    assert status == 0
    assert output["night"].endswith(".3")
    assert output["series"]["new"] >= 1
    _, again = night("import", runs[1])
    assert again["night"] == output["night"]
    with writing(tmp_path / "store") as history:
        assert len(history.nights()) == 3


def test_old_run_folders_go_and_their_figures_stay(
    night: Callable[..., tuple[int, dict[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"quickstart-20260101t00000{k}z-00000000" for k in range(3)]
    for name in names:
        monkeypatch.setattr("harness.cli.nightly.nights.default_name", lambda *_, name=name: name)
        night("--keep", "2")
    assert sorted(path.name for path in (tmp_path / "store" / "runs").iterdir()) == names[1:]
    with writing(tmp_path / "store") as history:
        assert len(history.nights()) == 3


def test_a_run_that_fails_leaves_the_history_as_it_was(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run(_spec: object, _options: RunOptions) -> RunOutcome:
        raise CaseError("worker-died", "worker 1 is gone", stage="run")

    monkeypatch.setattr(pipeline, "run", run)
    status, captured = call(
        capsys, "nightly", "run", "quickstart", "--store", str(tmp_path), "--no-isolation"
    )
    assert (status, captured.err) == (1, "stratbench: worker 1 is gone\n")
    with writing(tmp_path) as history:
        assert history.nights() == []


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_night_that_is_interrupted_says_how_it_becomes_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, has_begun: bool
) -> None:
    def run(spec: Experiment, options: RunOptions) -> RunOutcome:
        if has_begun:
            open_run(options.out, experiment=spec.to_document(), environment={}).close()
        raise Interrupted("interrupted; repeat the command with --out x --resume")

    monkeypatch.setattr(pipeline, "run", run)
    inputs = ("--no-isolation", "--set", "measure.repeats=2")
    status, captured = call(capsys, "nightly", "run", "quickstart", "--store", str(tmp_path), *inputs)
    assert status == 130
    if not has_begun:
        assert captured.err == "stratbench: interrupted; no night was added; run the command again\n"
        return
    (folder,) = (tmp_path / "runs").iterdir()
    resume, add = re.findall("`stratbench ([^`]+)`", captured.err)
    assert resume == f"run {folder}/experiment.yaml --out {folder} --resume --no-isolation"
    assert add == f"nightly import quickstart {folder} --store {tmp_path}"
    # The command that is printed goes on with the same experiment.
    spec = load_experiment(f"{folder}/experiment.yaml")
    assert spec.measure.repeats == 2
    assert read_head(folder)["spec_hash"] == canonical_hash(spec.to_document())


def test_a_disk_that_is_full_during_a_night_says_how_it_becomes_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run(_spec: object, _options: RunOptions) -> RunOutcome:
        full = OSError(errno.ENOSPC, "No space left on device")
        raise StoreError(f"x cannot be written: {full.strerror}; make room", field="out") from full

    monkeypatch.setattr(pipeline, "run", run)
    status, captured = call(
        capsys, "nightly", "run", "quickstart", "--store", str(tmp_path), "--no-isolation"
    )
    assert status == 3
    assert "No space left on device; make room; no night was added; run the command again" in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("way", ["import", "ack", "night"])
def test_a_history_whose_disk_is_full_stays_as_it_was(
    night: Callable[..., tuple[int, dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    way: str,
) -> None:
    for slower in (1.0, 1.0, 1.0, 3.0):
        night(slower={"ps": slower})
    run = write_run(tmp_path / "run", [Case(workload="w", strategy=f"s{k}") for k in range(40)])
    with monkeypatch.context() as full:
        full.setattr("reports.history.store.connected", with_few_pages)
        arguments = {"import": ["import", str(run)], "ack": ["ack", "ps", "--reason", "x" * 100_000]}
        status, output = night(*arguments.get(way, []), n_more=40)
    assert status == 3
    assert f"the disk of {tmp_path / 'store'} must have room for the history" in output["error"]["message"]
    assert "make room" in output["error"]["message"]
    with writing(tmp_path / "store") as history:
        assert len(history.nights()) == 4
        assert not history.known()
        assert history.connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    status, output = night("import", str(run))
    assert (status, output["night"][-2:]) == (0, ".5")


def with_few_pages(path: Path, *, is_read: bool = False) -> sqlite3.Connection:
    """A database that has no room for more, which is what SQLite says of a full disk."""
    connection = connected(path, is_read=is_read)
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    return connection


def test_a_disk_without_room_for_a_history_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    run = write_run(tmp_path / "run", [Case(workload="w", strategy="ps")])
    store = str(tmp_path / "store")
    status, captured = call(capsys, "nightly", "import", "quickstart", "--store", store, str(run))
    assert status == 3
    assert f"the disk of {store} must have room for the history, got" in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_without_room_for_the_folder_of_a_history_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    run = write_run(tmp_path / "run", [Case(workload="w", strategy="ps")])
    store = str(tmp_path / "not" / "there")
    monkeypatch.setattr(Path, "mkdir", full)
    status, captured = call(capsys, "nightly", "import", "quickstart", "--store", store, str(run))
    assert status == 3
    assert f"the disk of {store} must have room for the history, got" in captured.err
    assert captured.err.count("\n") == 1


def test_a_night_of_the_future_is_refused_with_its_date_and_the_clocks(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file, store = tmp_path / "benchmarks.json", str(tmp_path / "store")
    stats = {"median": 0.1, "stddev": 0.01, "rounds": 5}
    benchmark = {"fullname": "a::b", "name": "b", "stats": stats}
    now = datetime.now(UTC)
    for ahead, expected in ((timedelta(days=2), 2), (timedelta(minutes=2), 0)):
        document = {"datetime": (now + ahead).isoformat(), "benchmarks": [benchmark]}
        file.write_text(json.dumps(document))
        status, captured = call(capsys, "nightly", "import", "quickstart", "--store", store, str(file))
        assert status == expected
        if expected:
            assert f"got {now + ahead:%Y-%m-%d %H:%M} UTC while the clock says {now:%Y}-" in captured.err
            assert captured.err.count("\n") == 1
    with writing(tmp_path / "store") as history:
        assert len(history.nights()) == 1


@pytest.mark.parametrize("hours", [1, 24])
def test_a_regression_after_four_nights_ends_imports_and_replays_with_4(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, hours: int
) -> None:
    paths = []
    for k in range(12):
        factor = 1 if k < 4 else 20
        benchmark = {
            "fullname": "a.py::b",
            "name": "b",
            "stats": {"median": 0.1 * factor * (1 + 0.01 * (k % 3)), "stddev": 0.01 * factor, "rounds": 5},
            "extra_info": {"payload_bytes_per_step": 1000 * factor},
        }
        moment = datetime(2026, 3, 2, tzinfo=UTC) + timedelta(hours=hours * k)
        paths.append(tmp_path / f"{k}.json")
        paths[-1].write_text(json.dumps({"datetime": moment.isoformat(), "benchmarks": [benchmark]}))
    status, captured = call(
        capsys, *command("quickstart", tmp_path / "store", "import", *map(str, paths)), "--json"
    )
    document = json.loads(captured.out)
    assert (status, document["series"]["regressed"]) == (4, 2)
    with reading(tmp_path / "store") as history:
        names = [night.name for night in history.nights()]
    for name, expected in zip(names[5:], [0, *[4] * 6], strict=True):
        replay = command("pytest-benchmark", tmp_path / "store", "replay", name)
        status, captured = call(capsys, *replay, "--json")
        assert status == expected
        for regression in json.loads(captured.out)["regressions"]:
            assert regression["since"] == names[4]


def test_a_drift_that_has_come_far_ends_one_replay_with_4(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    paths = []
    for k in range(45):
        stats = {"median": 0.1 * 1.005**k * (1 + 0.004 * (k * 7 % 5)), "stddev": 0.001, "rounds": 5}
        benchmark = {"fullname": "a.py::b", "name": "b", "stats": stats}
        moment = datetime(2026, 3, 2, tzinfo=UTC) + timedelta(days=k)
        paths.append(tmp_path / f"{k}.json")
        paths[-1].write_text(json.dumps({"datetime": moment.isoformat(), "benchmarks": [benchmark]}))
    prometheus = tmp_path / "night.prom"
    imports = ["import", *map(str, paths)]
    status, captured = call(capsys, *command("quickstart", tmp_path / "store", *imports), "--json")
    assert (status, json.loads(captured.out)["series"]["drifting"]) == (0, 1)
    statuses = {}
    for night in ("2026-04-09", "2026-04-10", "2026-04-11"):
        status, captured = call(
            capsys,
            *command("pytest-benchmark", tmp_path / "store", "replay", night),
            "--json",
            "--prometheus",
            str(prometheus),
        )
        regressed = (
            'stratbench_nightly_regressed{experiment="pytest-benchmark"} 1.0' in prometheus.read_text()
        )
        assert regressed == (status == 4)
        statuses[night] = status
    assert statuses == {"2026-04-09": 0, "2026-04-10": 4, "2026-04-11": 0}


def test_the_status_of_a_night_without_regressions_is_that_of_its_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run(_spec: object, options: RunOptions) -> RunOutcome:
        assert options.out is not None
        write_run(options.out, [Case(workload="w", strategy="ps")])
        return replace(RunOutcome(run_dir=options.out), exit_status=1)

    monkeypatch.setattr(pipeline, "run", run)
    assert call(capsys, *command("quickstart", tmp_path))[0] == 1


def test_a_first_night_of_which_every_case_failed_is_told_replayed_and_has_nothing_to_acknowledge(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run(_spec: object, options: RunOptions) -> RunOutcome:
        assert options.out is not None
        problems = dict.fromkeys(range(6), ("failed", DIED))
        cases = [Case(workload="w", strategy=name, traced=False, problems=problems) for name in USUAL_S]
        write_run(options.out, cases, experiment_name="quickstart")
        return replace(RunOutcome(run_dir=options.out), exit_status=1)

    monkeypatch.setattr(pipeline, "run", run)
    nightly = ("nightly", "run", "quickstart", "--store", str(tmp_path), "--no-isolation")
    status, captured = call(capsys, *nightly, "--json")
    document = json.loads(captured.out)
    assert status == 1
    assert document["verdict"] == f"{document['night']}: no series, 4 without a figure"
    assert (tmp_path / "trend.html").is_file()
    status, captured = call(capsys, *command("quickstart", tmp_path, "replay", document["night"]), "--json")
    assert (status, json.loads(captured.out)["verdict"]) == (1, document["verdict"])
    status, captured = call(capsys, *command("quickstart", tmp_path, "ack", "ps", "--reason", "x"))
    assert (status, captured.out) == (2, "")
    assert captured.err.endswith("got 'ps'; none are known\n")


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (["ack", "ps"], 2, "Missing option '--reason'"),
        (["--reason", "x"], 2, "No such option: --reason"),
        (["bisect", "ps", "--prometheus", "x.prom"], 2, "No such option: --prometheus"),
        (["replay", "2026-01-01", "--time-budget", "1m"], 2, "No such option: --time-budget"),
        (["import", "run", "--keep", "5"], 2, "No such option: --keep"),
        (["trend"], 2, "must hold a history, got none"),
        (["replay", "2026-01-01"], 2, "must hold a history, got none"),
        (["ack", "ps", "--reason", "x"], 2, "store: must name a history with a night, got none"),
        (["ack", "ps", "--reason", " "], 2, "reason: must say why the change is accepted, got nothing"),
        (["--time-budget", "soon"], 2, "time-budget: must be a time such as 90s"),
        (["import", "nowhere"], 2, "nowhere"),
        (["--confirm", "2"], 2, "confirm"),
    ],
)
def test_what_cannot_be_used_costs_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], status: int, expected: str
) -> None:
    result, captured = call(capsys, *command("quickstart", tmp_path / "s", *arguments))
    assert (result, captured.out) == (status, "")
    assert expected in captured.err
    assert captured.err.count("\n") == 1


def test_a_second_night_at_once_ends_with_3_and_names_the_first(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with writing(tmp_path):
        status, captured = call(
            capsys, "nightly", "run", "quickstart", "--store", str(tmp_path), "--no-isolation"
        )
    assert status == 3
    assert "is in use by process" in captured.err


BEGAN = datetime(2026, 1, 5, 2, tzinfo=UTC)
SLOWER_SINCE, N_NIGHTS = 15, 19
LAST, SINCE = "2026-01-23", "2026-01-20"


class Store:
    """A history whose `ps` has got slower, and the command on it."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path, self.folder, self.capsys = folder / "store", folder, capsys
        self.page = self.path / "trend.html"

    def nights(
        self, experiment: str, *, strategies: Sequence[str] = ("ps", "all-reduce"), days: int = 0
    ) -> None:
        """Nights of an experiment, in which `ps` gets slower; `days` later than those of others."""
        rng = np.random.default_rng(4)
        with writing(self.path) as history:
            for number in range(N_NIGHTS):
                history.add(
                    NewNight(
                        figures=[
                            Figure(subject=subject(name), value=_rate(name, number, rng), error=None, n=3)
                            for name in strategies
                        ],
                        lost=(),
                        started_utc=(BEGAN + timedelta(days=number + days)).isoformat(),
                        experiment=experiment,
                        run=f"{experiment}-{number}",
                        run_dir="",
                    )
                )

    def benchmarks(self, day: int, *, median: float = 0.1, test_file: str = "a.py", hour: int = 3) -> Path:
        """A file of pytest-benchmark of a day of January, of one test file."""
        stats = {"median": median, "stddev": 0.001, "rounds": 5}
        file = self.folder / f"{day}-{median}-{test_file}.json"
        document = {
            "datetime": f"2026-01-{day:02d}T{hour:02d}:00:00+00:00",
            "benchmarks": [{"fullname": f"{test_file}::test_b", "name": "test_b", "stats": stats}],
        }
        file.write_text(json.dumps(document))
        return file

    def called(self, *arguments: str, experiment: str = "quickstart") -> tuple[int, list[str], list[str]]:
        """Status, lines of the answer and lines beside it."""
        status = main(command(experiment, self.path, *arguments))
        captured = self.capsys.readouterr()
        return status, captured.out.splitlines(), captured.err.splitlines()

    def output(self, *arguments: str, experiment: str = "quickstart") -> tuple[int, dict[str, Any]]:
        status, out, _ = self.called(*arguments, "--json", experiment=experiment)
        return status, json.loads("\n".join(out))


def older(store: Store, days: float, value: float) -> None:
    """A night of `ps` that is written after all that began later."""
    with writing(store.path) as history:
        history.add(
            NewNight(
                figures=[Figure(subject=subject("ps"), value=value, error=None, n=3)],
                lost=(),
                started_utc=(BEGAN + timedelta(days=days)).isoformat(),
                experiment="quickstart",
                run="older",
                run_dir="",
            )
        )


def subject(strategy: str) -> Subject:
    return Subject(
        case=f"w-{strategy}",
        workload="w",
        shape="2 workers",
        strategy=strategy,
        comparison_key="k",
        lock_hash="l",
        metric="rate",
    )


def _rate(strategy: str, number: int, rng: np.random.Generator) -> float:
    slower = 0.7 if strategy == "ps" and number >= SLOWER_SINCE else 1.0
    return 1000.0 * slower * float(np.exp(rng.normal(0, 0.005)))


@pytest.fixture
def store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Store:
    return Store(tmp_path, capsys)


def test_a_run_that_is_there_already_leaves_the_page_to_the_newest_night(store: Store) -> None:
    old, new = store.benchmarks(5), store.benchmarks(8)
    _, out, err = store.called("import", str(old), str(new), experiment="pytest-benchmark")
    assert err == [f"2026-01-05: {old}", f"2026-01-08: {new}"]
    _, out, err = store.called("import", str(old), experiment="pytest-benchmark")
    assert err == [f"2026-01-05: already in the history: {old}"]
    assert out[0].startswith("2026-01-08: ")
    assert out[-1] == f"report: {store.page}"
    assert "night 2026-01-08</title>" in store.page.read_text()


def test_a_night_that_joins_between_others_does_not_put_the_page_back(store: Store) -> None:
    store.called("import", str(store.benchmarks(8)), experiment="pytest-benchmark")
    _, output = store.output("import", str(store.benchmarks(6)), experiment="pytest-benchmark")
    assert output["night"] == "2026-01-08"
    assert "2 nights so far" in store.page.read_text()


def test_a_replayed_night_has_a_page_of_its_own(store: Store) -> None:
    store.nights("quickstart")
    store.called("replay", LAST)
    live = store.page.read_text()
    status, out, err = store.called("replay", SINCE)
    page = store.path / f"night-{SINCE}.html"
    assert status == 0
    assert out[-1] == f"report: {page}"
    assert err == [f"{page} is the page of {SINCE}; trend.html stays that of {LAST}"]
    assert f"night {SINCE}</title>" in page.read_text()
    assert store.page.read_text() == live


def test_what_is_acknowledged_ends_its_alert_on_the_page_and_for_prometheus(store: Store) -> None:
    store.nights("quickstart")
    prom = store.folder / "night.prom"
    status, _ = store.output("replay", LAST, "--prometheus", str(prom))
    assert (status, regressed(prom)) == (4, 1)
    assert "Regressed since" in store.page.read_text()
    status, out, err = store.called("ack", "ps", "--reason", "a slower lock", "--prometheus", str(prom))
    assert (status, err) == (0, [])
    assert out[0] == f"acknowledged: changes of ps up to {LAST}: a slower lock"
    assert out[1] == f"{LAST}: 1 known, 1 ok"
    assert out[-1] == f"report: {store.page}"
    assert regressed(prom) == 0
    text = store.page.read_text()
    assert "Regressed since" not in text
    assert "a slower lock" in text
    _, output = store.output("ack", "ps", "--reason", "again")
    assert {"case": "ps", "until": LAST, "reason": "again"}.items() <= output.items()
    assert output["report"] == str(store.page)


def test_where_nothing_has_changed_there_is_nothing_to_acknowledge(store: Store) -> None:
    store.nights("quickstart")
    status, out, (line,) = store.called("ack", "all-reduce", "--reason", "x")
    assert (status, out) == (2, [])
    assert line == (
        "stratbench: ack: must be a case that has changed, got 'all-reduce': nothing to acknowledge; changed "
        "are w ps"
    )
    with writing(store.path) as history:
        assert not history.known()


def test_a_change_of_a_case_that_is_missed_tonight_can_be_acknowledged(store: Store) -> None:
    store.nights("quickstart")
    with writing(store.path) as history:
        history.add(
            NewNight(
                figures=[Figure(subject=subject("all-reduce"), value=1000.0, error=None, n=3)],
                lost=(),
                started_utc=(BEGAN + timedelta(days=N_NIGHTS)).isoformat(),
                experiment="quickstart",
                run="without-ps",
                run_dir="",
            )
        )
    assert store.output("ack", "ps", "--reason", "x")[0] == 0


def test_each_experiment_of_a_store_has_a_page_and_others_than_the_named_are_told(store: Store) -> None:
    store.nights("quickstart")
    store.called("replay", LAST)
    live = store.page.read_text()
    file = store.benchmarks(5)
    status, out, err = store.called("import", str(file))
    page = store.path / "trend-pytest-benchmark.html"
    assert status == 0
    assert out[-1] == f"report: {page}"
    notice = f"1 night belongs to pytest-benchmark, not to quickstart; see {page}"
    assert err == [f"2026-01-05.2: {file}", notice]
    assert "pytest-benchmark, night 2026-01-05.2</title>" in page.read_text()
    assert store.page.read_text() == live
    status, _, (line,) = store.called("replay", LAST, experiment="pytest-benchmark")
    assert (status, f"replay: must be a night of pytest-benchmark, got '{LAST}'; " in line) == (2, True)


def test_experiments_whose_names_are_alike_as_files_have_pages_apart(store: Store) -> None:
    reports = set()
    for number, name in enumerate(("first", "a b", "a-b", "a/b")):
        store.nights(name, strategies=("single",), days=40 * number)
        last = (BEGAN + timedelta(days=40 * number + N_NIGHTS - 1)).date().isoformat()
        # A name with a slash on the command line is a file's.
        file = store.folder / f"{number}.yaml"
        file.write_text(f"name: {name}\nworkloads: [digits-cnn]\nstrategies: [single]\n")
        reports.add(store.output("replay", last, experiment=str(file))[1]["report"])
    assert len(reports) == 4
    assert {Path(report).parent for report in reports} == {store.path}


def test_an_experiment_that_is_called_like_a_date_does_not_share_a_page_with_a_night(store: Store) -> None:
    store.nights("quickstart")
    store.nights(SINCE, days=40)
    last = (BEGAN + timedelta(days=40 + N_NIGHTS - 1)).date().isoformat()
    live = store.output("replay", last, experiment=SINCE)[1]["report"]
    assert store.output("replay", SINCE)[1]["report"] != live
    assert f"{SINCE}, night {last}</title>" in Path(live).read_text()


def test_an_older_night_that_is_added_later_does_not_undo_what_is_known(store: Store) -> None:
    store.nights("quickstart")
    store.called("ack", "ps", "--reason", "a slower lock")
    older(store, SLOWER_SINCE - 0.5, 700.0)
    status, out, _ = store.called("replay", LAST)
    assert (status, out[0]) == (0, f"{LAST}: 1 known, 1 ok")
    assert "known: ps on w" in out[1]
    assert "since 2026-01-19.2," in out[1]


def test_what_is_acknowledged_after_an_older_night_was_added_concerns_the_newest_one(store: Store) -> None:
    store.nights("quickstart")
    older(store, 3.5, 100.0)
    _, out, _ = store.called("ack", "ps", "--reason", "a slower lock")
    assert out[0] == f"acknowledged: changes of ps up to {LAST}: a slower lock"
    assert out[1] == f"{LAST}: 1 known, 1 ok"


def test_what_is_known_is_so_to_a_replay_of_an_earlier_night(store: Store) -> None:
    store.nights("quickstart")
    assert store.called("replay", "2026-01-22")[0] == 4
    store.called("ack", "ps", "--reason", "a slower lock")
    status, out, _ = store.called("replay", "2026-01-22")
    assert (status, out[0]) == (0, "2026-01-22: 1 known, 1 ok")


def test_what_is_acknowledged_of_several_experiments_is_on_the_pages_of_all(store: Store) -> None:
    store.nights("quickstart")
    store.nights("rivals")
    _, output = store.output("ack", "ps", "--reason", "a slower lock", experiment="rivals")
    pages = [store.page, store.path / "trend-rivals.html"]
    assert output["report"] == str(pages[1])
    assert all("a slower lock" in page.read_text() for page in pages)


def test_an_import_of_several_experiments_tells_of_each_and_ends_with_4_if_any_regressed(
    store: Store,
) -> None:
    files = [store.benchmarks(k + 1, median=0.1 if k < SLOWER_SINCE else 0.15) for k in range(N_NIGHTS)]
    run = write_run(store.folder / "run", [Case(workload="w", strategy="ps")], experiment_name="quickstart")
    paths = ["import", *map(str, (*files, run))]
    status, out, _ = store.called(*paths)
    assert status == 4
    assert out[0].startswith("pytest-benchmark: 2026-01-19: 1 regressed")
    assert out[-1] == f"report: {store.path / 'trend-quickstart.html'}"
    status, output = store.output(*paths)
    (other,) = output["others"]
    assert (status, other["experiment"], other["series"]["regressed"]) == (4, "pytest-benchmark", 1)
    assert other["report"] == str(store.page)
    assert store.output("import", str(run))[0] == 0


def test_each_test_file_is_judged_by_the_newest_night_that_has_it(store: Store) -> None:
    slower = [store.benchmarks(k + 1, median=0.1 if k < SLOWER_SINCE else 0.15) for k in range(N_NIGHTS)]
    unchanged = [store.benchmarks(k + 1, test_file="b.py", hour=4) for k in range(N_NIGHTS)]
    paths = ["import", *map(str, (*slower, *unchanged))]
    prometheus = store.folder / "night.prom"
    status, output = store.output(*paths, "--prometheus", str(prometheus), experiment="pytest-benchmark")
    assert (status, output["night"]) == (4, "2026-01-19.2")
    assert output["series"]["regressed"] == output["series"]["ok"] == 1
    assert output["series"]["missed"] == 0
    assert [regression["case"] for regression in output["regressions"]] == ["a.py::test_b"]
    assert regressed(prometheus) == 1


def test_an_answer_in_words_writes_nothing(store: Store) -> None:
    store.nights("quickstart")
    with reading(store.path) as history:
        verdict = verdict_of(history, history.nights()[-1])
    before = sorted(store.path.iterdir())
    answer = night_answer(store.path, PublishedNight(verdict=verdict, report=None), otherwise=0)
    assert answer.exit_status == 4
    assert sorted(store.path.iterdir()) == before


def test_a_run_whose_commit_is_no_hash_becomes_a_night_without_one(store: Store) -> None:
    case = Case(workload="w", strategy="ps", git_sha="--output=/home/u/")
    run = write_run(store.folder / "run", [case], experiment_name="quickstart")
    status, _, err = store.called("import", str(run))
    assert status == 0
    assert err[0] == (
        f"{run} must name its commit by 40 or 64 hex digits, got '--output=/home/u/'; the night has no commit"
    )
    with reading(store.path) as history:
        assert [night.git_sha for night in history.nights()] == [None]


def test_a_file_for_prometheus_is_of_the_named_experiment_alone(store: Store) -> None:
    store.nights("rivals")
    prom = store.folder / "quickstart.prom"
    prom.write_text("what quickstart said\n")
    calls = [
        ["ack", "ps", "--reason", "x"],
        ["import", str(store.benchmarks(5))],
    ]
    for arguments in calls:
        _, _, err = store.called(*arguments, "--prometheus", str(prom))
        assert sum(f"{prom} is for nights of quickstart, got one of" in line for line in err) == 1
        assert prom.read_text() == "what quickstart said\n"
        store.called(*arguments, "--prometheus", str(prom.with_name("own.prom")), experiment="rivals")
    assert 'experiment="rivals"' in prom.with_name("own.prom").read_text()


def test_a_store_that_is_not_there_is_not_made_by_what_cannot_be_done(store: Store) -> None:
    for arguments in (
        ["ack", "ps", "--reason", "x"],
        ["import", str(store.folder / "gone")],
        ["import", str(store.benchmarks(5)), str(store.folder / "gone")],
    ):
        status, out, err = store.called(*arguments)
        assert (status, out, len(err)) == (2, [], 1)
        assert not store.path.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: "{}", "odd.json must be a file of pytest-benchmark"),
        (lambda text: text.replace("2026-01", "2999-01"), "a night must have begun by now, got 2999-01-06"),
    ],
)
def test_an_import_of_which_one_is_refused_adds_none(
    store: Store, change: Callable[[str], str], message: str
) -> None:
    store.nights("quickstart")
    odd = store.folder / "odd.json"
    odd.write_text(change(store.benchmarks(6).read_text()))
    status, _, (line,) = store.called("import", str(store.benchmarks(5)), str(odd))
    assert (status, message in line) == (2, True)
    with writing(store.path) as history:
        assert {night.experiment for night in history.nights()} == {"quickstart"}


def test_an_experiment_is_named_by_what_its_file_says(store: Store) -> None:
    store.nights("quickstart")
    file = store.folder / "other.yaml"
    file.write_text("name: quickstart\nworkloads: [digits-cnn]\nstrategies: [single, ps]\n")
    assert store.called("replay", LAST, experiment=str(file))[2] == []
    status, _, (line,) = store.called("replay", LAST, experiment=str(store.folder / "gone.yaml"))
    assert status == 2
    assert "must be a file or a shipped experiment" in line


@pytest.mark.parametrize(
    ("name", "offer"),
    [
        ("2026-01-21", "the newest before it is 2026-01-19; there are nights from 2026-01-05 to 2026-01-27"),
        ("2026-01-05.3", "the newest before it is 2026-01-05.2; there are nights from 2026-01-05"),
        ("2025-12-31", "the first is 2026-01-05; there are nights from 2026-01-05 to 2026-01-27"),
        ("yesterday", "there are nights from 2026-01-05 to 2026-01-27, each named by its date"),
    ],
)
def test_an_unknown_date_is_answered_with_the_newest_night_before_it(
    store: Store, name: str, offer: str
) -> None:
    days = (5, 5, 12, 19, 27)
    files = [str(store.benchmarks(day, median=0.1 + k / 100)) for k, day in enumerate(days)]
    store.called("import", *files)
    status, _, (line,) = store.called("replay", name, experiment="pytest-benchmark")
    assert status == 2
    assert f"replay: must be a night of pytest-benchmark, got '{name}'; {offer}" in line


@pytest.mark.parametrize("arguments", [["bisect", "ps"], ["replay", LAST], ["trend"]])
def test_an_experiment_without_nights_is_refused_with_what_the_store_holds(
    store: Store, arguments: list[str]
) -> None:
    store.nights("rivals")
    store.called("import", str(store.benchmarks(5)))
    status, _, (line,) = store.called(*arguments)
    assert status == 2
    assert line == (
        f"stratbench: {arguments[0]}: needs nights of quickstart in {store.path}, got 1 night of "
        f"pytest-benchmark and {N_NIGHTS} nights of rivals; name an experiment that it holds, or add nights "
        f"by `stratbench nightly run quickstart --store {store.path}`"
    )


def regressed(page: Path) -> float:
    """Value of the regression gauge that Prometheus reads."""
    (value,) = (
        sample.value
        for family in text_string_to_metric_families(page.read_text())
        for sample in family.samples
        if sample.name == "stratbench_nightly_regressed"
    )
    return value


def test_a_file_without_a_benchmark_is_refused(store: Store) -> None:
    empty = store.benchmarks(5)
    empty.write_text(json.dumps({**json.loads(empty.read_text()), "benchmarks": []}))
    status, output = store.output("import", str(empty))
    assert (status, output["error"]["message"]) == (
        2,
        f"{empty} must contain benchmarks, got none; name another",
    )
    status, output = store.output("import", str(store.benchmarks(6)))
    assert (status, output["series"]["new"]) == (0, 1)


def test_the_page_of_the_newest_night_is_written_again(store: Store) -> None:
    store.nights("quickstart")
    status, document = store.output("trend")
    assert (status, document["night"], document["report"]) == (0, LAST, str(store.path / "trend.html"))
    assert (store.path / "trend.html").is_file()
    status, _, (line,) = store.called("trend", experiment="rivals")
    assert status == 2
    assert "trend: needs nights of " in line
