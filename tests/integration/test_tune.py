"""Tuning on real workers: a plan that is equivalent, in the time that there is, whatever cuts it short."""

import json
import os
import signal
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from waiting import eventually
from watched_run import WatchedRun, records, watched

pytestmark = [pytest.mark.ray, pytest.mark.tensorflow]

STRATEGY = """
from strategies import Param, on_servers


class Anywhere:
    name = "anywhere"
    summary = "all variables on one worker, whichever is said"
    strategy_class = "exact"
    params = (Param(name="task", type=int, default=0, tunable=(0, 1, 7)),)

    def layout(self, step, topology, params):
        place = range(topology.n_tasks)[params["task"]]
        return on_servers(step, {v.name: place for v in step.variables if v.synced}, topology, params)
"""
WORKLOAD = "digits-mlp:units=16"
SECONDS = 240.0  # of which a machine that nobody else uses takes a sixth
SHORT = ["measure.warmup_steps=2", "measure.rounds=2", "measure.steps=4", "measure.window_s=0"]
TUNE = ["tune", WORKLOAD, "--strategy", "mine.py:Anywhere", "--seconds", f"{SECONDS:g}", "--seed", "3"]
TUNE += [word for setting in SHORT for word in ("--set", setting)]
OTHER, BROKEN = "mine.py:Anywhere:task=1", "mine.py:Anywhere:task=7"
START_S = 240.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(STRATEGY)
    return tmp_path


def began_s(run: Path) -> list[float]:
    """When each repeat began, in seconds after its run."""
    created = datetime.fromisoformat(json.loads((run / "run.json").read_text())["created_utc"]).timestamp()
    return [plan.stat().st_mtime - created for plan in run.glob("cases/*/*/plan.json")]


def of(strategy: str, messages: dict[str, Any]) -> dict[str, Any]:
    return next(candidate for candidate in messages["candidates"] if candidate["strategy"] == strategy)


def test_the_plan_is_equivalent_and_time_is_kept(folder: Path) -> None:
    with watched([*TUNE, "--out", "best.json", "--json"], folder) as run:
        status, out, err = run.finish()
        assert (status, run.leftovers()) == (0, []), err
    document = json.loads(out)
    assert document["plan"] == "best.json"
    assert len(document["candidates"]) == 2
    assert of(OTHER, document)["outcome"] != "failed"
    assert of(OTHER, document)["n"] >= 1
    assert of(BROKEN, document)["outcome"] == "failed"
    assert of(BROKEN, document)["why"].startswith("mine.py:12: IndexError: range object index out of range")
    lines = records(folder / document["run_dir"])
    assert {record["status"] for record in lines} == {"ok"}
    assert all(record["equivalence"]["equivalent"] for record in lines)
    assert max(began_s(folder / document["run_dir"])) <= SECONDS + 1, (
        "no repeat begins after the time there is"
    )
    plan = json.loads((folder / "best.json").read_text())
    assert plan["tuning"] == {key: value for key, value in document.items() if key != "plan"}
    assert plan["strategy_params"]["task"] == (1 if document["strategy"] == OTHER else 0)
    with watched(["verify", WORKLOAD, "--plan", "best.json"], folder) as run:
        status, out, err = run.finish()
        assert status == 0, err
        assert out.startswith("EQUIVALENT: plan-best (exact) on digits-mlp")


def test_an_interruption_leaves_what_was_found_and_nothing_running(folder: Path) -> None:
    def tries_a_candidate(run: WatchedRun) -> bool:
        assert run.process.poll() is None, "the moment was missed"
        return bool(list(folder.glob("runs/*/cases/*/1/plan.json"))) and bool(run.workers())

    with watched(TUNE, folder) as run:
        eventually(lambda: tries_a_candidate(run), START_S, "a candidate is measured")
        os.kill(run.process.pid, signal.SIGINT)
        status, _, err = run.finish()
        assert (status, run.leftovers()) == (130, []), err
    (plan,) = folder.glob("runs/*/tuned.plan.json")
    assert [record["repeat"] for record in records(plan.parent)] == [0]
    assert err.strip().splitlines()[-1].startswith("stratbench: interrupted; so far, mine.py:Anywhere")
    assert err.strip().endswith(f"its plan is {plan.relative_to(folder)}")
    tuning = json.loads(plan.read_text())["tuning"]
    assert tuning["interrupted"] is True
    assert of(BROKEN, tuning)["outcome"] == "failed"
    assert of(OTHER, tuning)["outcome"] == "not tried"
