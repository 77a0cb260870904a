"""Predictions of a real run, with the costs of a real probe."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.tensorflow]

EXPERIMENT = """
name: small
workloads: [{name: digits-mlp, units: 16}]
strategies: [none, all-reduce, ps, tf-multi-worker-mirrored]
measure: {repeats: 1, rounds: 2, steps: 4, window_s: 0.02}
compare: {baseline: none}
"""


def stratbench(*arguments: str, cwd: Path, status: int = 0) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        [sys.executable, "-m", "harness.cli", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an experiment, its probe and its answer of `predict`."""
    folder = tmp_path_factory.mktemp("predicted")
    (folder / "small.yaml").write_text(EXPERIMENT)
    few = (
        "workloads=[{name: equal-variables, variables: 2, side: 16}, {name: equal-variables, side: 64}]",
        "strategies=[none, all-reduce, ps]",
        "cluster.workers=2",
        "measure={repeats: 1, rounds: 2, steps: 4, window_s: 0.02}",
    )
    settings = [word for setting in few for word in ("--set", setting)]
    written = stratbench("probe", "--json", "--out", "probe.json", *settings, cwd=folder)
    (folder / "made.json").write_text(written.stdout)
    command = (
        "predict",
        "small.yaml",
        "--probe",
        "probe.json",
        "--workers",
        "2,4",
        "--link",
        "unlimited,100mbit",
    )
    answer = stratbench(*command, "--out", "profile", "--json", cwd=folder)
    (folder / "answer.json").write_text(answer.stdout)
    return folder


def cases(folder: Path) -> list[Mapping[str, Any]]:
    predicted: list[Mapping[str, Any]] = json.loads((folder / "answer.json").read_text())["cases"]
    return predicted


def test_a_probe_has_costs_of_what_it_ran(folder: Path) -> None:
    probe = json.loads((folder / "made.json").read_text())
    assert probe["path"] == "probe.json"
    assert (set(probe["costs"]["collectives"]), set(probe["spreads"])) == ({"tcp"}, {"tcp", "servers"})
    assert probe["n_steps"] == 4
    assert json.loads((folder / "probe.json").read_text())["costs"] == probe["costs"]


def test_every_strategy_is_predicted_at_every_number_and_link(folder: Path) -> None:
    predicted = cases(folder)
    questions = {(case["strategy"], case["workers"], case["link_mbit"]) for case in predicted}
    names = ("none", "all-reduce", "ps")
    assert questions == {(name, n, rate) for name in names for n in (2, 4) for rate in (None, 100.0)}
    for case in predicted:
        assert case["interval"]["low"] < case["step_s"] < case["interval"]["high"]
        assert case["examples_per_s"] == pytest.approx(case["batch_size"] / case["step_s"])
        assert (case["payload_bytes_per_step"] > 0) is (case["strategy"] != "none")
        assert ("examples per worker" in case["extrapolated"]) is (case["workers"] == 4)
        assert ("workers" in case["extrapolated"]) is (case["workers"] == 4 and case["strategy"] != "none")


def test_what_has_no_plan_is_a_note(folder: Path) -> None:
    (note,) = json.loads((folder / "answer.json").read_text())["notes"]
    assert note.startswith("tf-multi-worker-mirrored: must be one that stratbench plans")


def test_two_workers_without_exchanges_are_predicted_as_measured(folder: Path) -> None:
    records = [json.loads(line) for line in (folder / "profile" / "results.jsonl").read_text().splitlines()]
    (measured,) = (r for r in records if (r["strategy"], r["workers"]) == ("none", 2))
    (predicted,) = (
        c for c in cases(folder) if (c["strategy"], c["workers"], c["link_mbit"]) == ("none", 2, None)
    )
    assert predicted["step_s"] == pytest.approx(measured["step_s"]["p50"], rel=0.05)


def test_a_slower_link_is_never_faster(folder: Path) -> None:
    by_case = {(c["strategy"], c["workers"], c["link_mbit"]): c["step_s"] for c in cases(folder)}
    for (strategy, n, rate), step_s in by_case.items():
        assert rate is not None or step_s <= by_case[strategy, n, 100.0] * (1 + 1e-9)


def test_a_run_folder_is_enough_and_a_page_shows_its_curves(folder: Path) -> None:
    done = stratbench(
        *("predict", "profile", "--probe", "probe.json", "--strategies", "ps", "--workers", "3"),
        *("--price", "0.5", "--set", "cluster.link.rate_mbit=100", "--set", "workloads.0.batch_size=66"),
        *("--set", "faults=[{worker: 2, kind: slow, delay_ms: 50}]", "--html", "page.html"),
        cwd=folder,
    )
    lines = done.stdout.splitlines()
    assert lines[0].startswith("changed: cluster.link.rate_mbit=100, workloads.0.batch_size=66, faults=")
    surroundings = "at 100 Mbit/s, worker 2 slow delay_ms=50"
    assert lines[1] == f"digits-mlp:units=16 · 3 workers · batch 66 · links {surroundings}"
    assert lines[2].endswith("cost/M")
    assert f"fastest, digits-mlp:units=16 {surroundings}: ps from 3 workers" in lines
    assert max(map(len, lines[2:])) <= 100
    assert "page: page.html" in lines
    page = (folder / "page.html").read_text()
    assert 'id="prediction-0"' in page
    assert "changed: cluster.link.rate_mbit=100" in page
    assert "digits-mlp:units=16: ps on 3 workers" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["profile", "--probe", "other.json"], "must be of the machine that the run was made on, got"),
        (["profile"], "make one by `stratbench probe`"),
        (["profile", "--probe", "probe.json", "--workers", "65536"], "each replica needs an example"),
        (["profile", "--probe", "probe.json", "--strategies", "tf-one-device"], "stratbench plans"),
    ],
)
def test_what_cannot_be_predicted_costs_one_line(folder: Path, arguments: list[str], message: str) -> None:
    other = json.loads((folder / "probe.json").read_text())
    other["identity"]["cpu_model"] = "of another machine"
    (folder / "other.json").write_text(json.dumps(other))
    done = stratbench("predict", *arguments, cwd=folder, status=2)
    (line,) = done.stderr.splitlines()
    assert line.startswith("stratbench: ")
    assert message in line


def test_a_plan_is_recommended_for_other_workers(folder: Path) -> None:
    command = ("recommend", "profile", "--probe", "probe.json", "--workers", "16", "--link", "100mbit")
    answer = json.loads(stratbench(*command, "--out", "best.json", "--json", cwd=folder).stdout)
    assert (answer["workload"], answer["workers"], answer["path"]) == ("digits-mlp:units=16", 16, "best.json")
    assert answer["measured_in"] is None
    assert answer["measure_later"].endswith("--workers 16 --plan best.json")
    assert "tf-multi-worker-mirrored" in answer["notes"][0]
    plan = json.loads((folder / "best.json").read_text())
    assert (plan["workload"], plan["recommendation"]["chosen"]) == ("digits-mlp", answer["chosen"])


def test_contenders_are_measured_beside_their_predictions(folder: Path) -> None:
    settings = ("--set", "measure.until={ratio_ci: 50%, at_most: 20s}", "--set", "measure.repeats=1")
    command = ("recommend", "small.yaml", "--probe", "probe.json", "--strategies", "all-reduce,ps", "--json")
    answer = json.loads(stratbench(*command, *settings, "--out", "two.json", cwd=folder).stdout)
    measured = [plan for plan in answer["plans"] if plan["measured"] is not None]
    assert measured
    assert all(plan["problem"] is None for plan in answer["plans"])
    assert (answer["measure_later"], answer["chosen"] in {plan["plan"] for plan in measured}) == (None, True)
    records = [
        json.loads(line)
        for line in (folder / answer["measured_in"] / "results.jsonl").read_text().splitlines()
    ]
    assert {record["status"] for record in records} == {"ok"}
    assert {record["equivalence"]["equivalent"] for record in records} == {True}
    assert "measured" in answer["verdict"]
    planned = stratbench("run", "small.yaml", "--plan", "two.json", "--dry-run", cwd=folder)
    assert planned.stdout.splitlines()[-1] == "5 cases, 1 repeat of each: 5 to run"
