"""`stratbench run`: what it hands over, what it prints of it, and the command line that its folder keeps."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from called import WRITTEN, Pipeline, call, document
from ports import kept_port

from harness.cli import main
from harness.cli.commands.run import planned_table
from harness.experiment.cases import expand
from harness.experiment.load import resolve
from harness.experiment.references import WorkloadRef
from harness.host_facts import environment
from harness.measure.timeouts import Timeouts
from harness.pipeline import RunOutcome


def test_run_hands_over_the_spec_and_the_options(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("SECRET", "x")
    arguments = (
        "--workers 3 --replicas 2 --workloads wide_mlp --strategies ps:staleness=2,sync=true,all_reduce"
    )
    more = "--steps 5 --warmup 1 --repeats 2 --set measure.seed=7 --out here"
    flags = "--resume --fail-fast --time-budget 1h1m --checkpoint --restore /there --timeout-factor 4"
    status, captured = call(
        capsys, "run", "quickstart", *arguments.split(), *more.split(), *flags.split(), "--json"
    )
    spec, options = pipeline.asked[0]
    assert status == 0
    assert (spec.cluster.workers, spec.cluster.replicas_per_worker) == ((3,), (2,))
    assert spec.workloads == (WorkloadRef(reference="wide-mlp"),)
    assert [str(ref) for ref in spec.strategies] == ["ps:staleness=2,sync=true", "all-reduce"]
    assert (spec.measure.steps, spec.measure.warmup_steps, spec.measure.repeats, spec.measure.seed) == (
        5,
        1,
        2,
        7,
    )
    assert (options.out, options.resume, options.fail_fast, options.dry_run) == (
        Path("here"),
        True,
        True,
        False,
    )
    assert (options.time_budget_s, options.quiet) == (3660.0, True)
    assert options.timeouts == Timeouts(factor=4.0)
    assert (spec.checkpoint.save, spec.checkpoint.restore) == (True, Path("/there"))
    assert options.environ["OMP_NUM_THREADS"] == "3"
    assert "SECRET" not in options.environ
    assert "baseline single is not among the strategies given" in captured.err


@pytest.mark.parametrize(
    ("options", "is_told"),
    [
        (["--repeats", "2"], True),
        (["--repeats", "2", "--until-ci", "3%"], False),
        (["--repeats", "2", "--set", "measure.until=null"], False),
        ([], False),
    ],
)
def test_a_number_of_repeats_says_what_it_leaves_out(
    capsys: pytest.CaptureFixture[str],
    pipeline: Pipeline,
    tmp_path: Path,
    options: list[str],
    is_told: bool,
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("workloads: wide-mlp\nstrategies: ps\nmeasure: {until: {ratio_ci: 5%}}\n")
    status, captured = call(capsys, "run", str(file), *options)
    ((spec, _),) = pipeline.asked
    assert status == 0
    note = "measure.until is ignored, because the number of repeats was given\n"
    assert captured.err == (note if is_told else "")
    assert (spec.measure.until is None) is (is_told or "measure.until=null" in options)


@pytest.mark.parametrize("command", [["run", "quickstart"], ["verify", "wide-mlp", "-s", "ps"]])
def test_the_process_of_another_program_stays_on_its_network(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline, command: list[str]
) -> None:
    before = Path("/proc/self/ns/net").readlink()
    assert call(capsys, *command)[0] == 0
    status, captured = call(capsys, *command, "--require-isolation")
    assert (status, captured.out, captured.err.count("\n")) == (3, "", 1)
    assert captured.err.startswith("stratbench: require-isolation: cannot create a network namespace: ")
    assert Path("/proc/self/ns/net").readlink() == before
    assert len(pipeline.asked) == 1


def test_a_sweep_over_local_and_containers_stays_where_containers_are_reached(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline
) -> None:
    command = ["run", "quickstart", "--set", "cluster.provider=[local,docker]"]
    assert call(capsys, *command)[0] == 0
    assert [options.exposure for _, options in pipeline.asked] == ["provider docker needs the host's network"]
    status, captured = call(capsys, *command, "--require-isolation")
    assert (status, captured.out, captured.err.count("\n")) == (3, "", 1)
    assert "cannot create a network namespace: provider docker needs the host's network" in captured.err
    assert len(pipeline.asked) == 1


def test_a_run_is_told_why_it_can_be_reached(capsys: pytest.CaptureFixture[str], pipeline: Pipeline) -> None:
    assert call(capsys, "run", "quickstart", "--no-isolation")[0] == 0
    assert call(capsys, "run", "quickstart", "--dry-run")[0] == 0
    assert [options.exposure for _, options in pipeline.asked] == ["--no-isolation was given", None]


def test_metrics_have_a_port_on_loopback(capsys: pytest.CaptureFixture[str], pipeline: Pipeline) -> None:
    with kept_port() as port:
        command = ["run", "quickstart", "--metrics-port", str(port)]
        with socket.create_server(("127.0.0.1", port)):
            status, captured = call(capsys, *command)
            assert (status, captured.err.count("\n")) == (2, 1)
            assert captured.err.startswith("stratbench: metrics_port: must be a free port of 127.0.0.1, got ")
        assert call(capsys, *command)[0] == 0
        ((_, options),) = pipeline.asked
        with options.metrics as listener:
            assert listener.getsockname() == ("127.0.0.1", port)


def test_json_is_one_document_whatever_a_workload_prints(capsys: pytest.CaptureFixture[str]) -> None:
    status, captured = call(capsys, "run", "quickstart", "--json")
    assert status == 0
    assert document(captured) == {
        "run_dir": "runs/x",
        "report": "runs/x/report.html",
        "cases": {"ok": 3, "failed": 0, "skipped": 0, "implausible": 0},
        "exit_status": 0,
    }
    assert "chatter" in captured.err


def test_a_failed_case_is_status_1(capsys: pytest.CaptureFixture[str], pipeline: Pipeline) -> None:
    pipeline.outcome = RunOutcome(run_dir=Path("r"), report=WRITTEN, n_ok=1, n_failed=2, exit_status=1)
    status, captured = call(capsys, "run", "quickstart")
    assert status == 1
    assert "wide-mlp\n  WINNER  ps\n\nrepeats: 1 ok, 2 failed\nrun folder: " in captured.out


def test_a_dry_run_says_what_it_would_run(capsys: pytest.CaptureFixture[str], pipeline: Pipeline) -> None:
    cases = expand(
        resolve(
            {
                "name": "x",
                "workloads": ["wide-mlp"],
                "strategies": ["single", "ps:staleness=2"],
                "cluster": {"workers": [2, 4]},
            }
        )
    )
    pipeline.outcome = RunOutcome(run_dir=None, cases=cases, n_repeats=3)
    status, captured = call(capsys, "run", "quickstart", "--dry-run")
    assert status == 0
    assert captured.out.splitlines()[1:] == [
        "workload  strategy        workers x replicas  repeats",
        "wide-mlp  single          1 x 1               3",
        "wide-mlp  ps:staleness=2  2 x 1               3",
        "wide-mlp  ps:staleness=2  4 x 1               3",
        "",
        "3 cases, 3 repeats of each: 9 to run",
    ]
    assert pipeline.asked[0][1].dry_run
    status, captured = call(capsys, "run", "quickstart", "--dry-run", "--json")
    assert json.loads(captured.out)["planned"] == [case.id for case in cases]


@pytest.mark.parametrize(
    ("cluster", "column", "cells"),
    [
        ({"cores_per_worker": [1, 2]}, "cores per worker", {"1", "2"}),
        ({"memory_per_worker": ["512MiB", "4GiB"]}, "memory per worker", {"0.5 GiB", "4 GiB"}),
        ({"link": {"rate_mbit": [100, None]}}, "links", {"100 Mbit/s", "no limit"}),
        (
            {"link": {"rate_mbit": [100, None], "burst_kb": 32, "workers": {1: {"rate_mbit": 10}}}},
            "links",
            {"100 Mbit/s, 10 Mbit/s, burst 32 kB", "no limit, 10 Mbit/s, burst 32 kB"},
        ),
    ],
)
def test_a_dry_run_tells_apart_what_is_swept(cluster: dict[str, Any], column: str, cells: set[str]) -> None:
    document = {"name": "x", "workloads": ["wide-mlp"], "strategies": ["ps"]}
    cases = expand(resolve({**document, "cluster": {"provider": "docker", **cluster}}))
    planned = planned_table(RunOutcome(run_dir=None, cases=cases, n_repeats=1))
    assert planned.columns[-2] == column
    assert {row[-2] for row in planned.rows} == cells
    assert planned.total == "2 cases, 1 repeat of each: 2 to run"


def test_a_run_keeps_the_command_that_makes_it_again_without_secrets(pipeline: Pipeline) -> None:
    arguments = ["run", "quickstart", "--out", "my runs", "--restore", "https://bob:hunter2@example.org/"]
    assert main(arguments) == 0
    ((_, options),) = pipeline.asked
    command = "stratbench run quickstart --out 'my runs' --restore 'https://[redacted]@example.org/'"
    assert options.command == command
    assert environment({}, command=command)["command"] == command
    assert "command" not in environment({})
