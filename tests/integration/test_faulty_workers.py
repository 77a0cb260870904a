"""Faulty workers from an experiment's file to its report, and what the command says of them."""

import json
from pathlib import Path
from typing import Any

import pytest
from watched_run import records, watched

pytestmark = [pytest.mark.ray, pytest.mark.tensorflow]

EXPERIMENT = """
name: faulty
workloads: ["digits-mlp:units=16,batch_size=60"]
strategies: [ps, "robust-ps:rule=median,f=1", "robust-all-reduce:rule=multi-krum,f=1,m=2"]
cluster: {workers: 5}
measure: {steps: 30, repeats: 1, interleave: false, window_s: 0, warmup_steps: 2, trace: false,
          evaluate: true}
compare: {baseline: ps}
# What each rule makes of each fault, contracts hold; here each is told of once.
matrix:
  exclude:
    - {strategy: robust-all-reduce, faults: clean}
    - {strategy: robust-all-reduce, faults: lost}
    - {strategy: robust-all-reduce, faults: mimic}
    - {strategy: ps, faults: lost}
faults:
  clean: []
  flip: [{worker: 3, kind: sign-flip, scale: 1.0e+20}]
  lost: [{worker: 3, kind: nan}, {worker: 1, kind: slow, delay_ms: 20.0}]
  mimic: [{worker: 4, kind: mimic}]
"""
DEAD = """
name: dead
workloads: ["digits-mlp:units=16,batch_size=60"]
strategies: ["robust-ps:rule=median"]
cluster: {workers: 3}
measure: {steps: 6, repeats: 1, window_s: 0, warmup_steps: 2, trace: false}
faults: [{worker: 2, kind: dead, from_step: 3}]
"""


def by_case(results: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(record["strategy"], record["method"]["scenario"]): record for record in results}


def test_faults_are_met_counted_and_told(tmp_path: Path) -> None:
    (tmp_path / "faulty.yaml").write_text(EXPERIMENT)
    with watched(["run", "faulty.yaml", "--out", "run", "--json"], tmp_path) as run:
        status, out, err = run.finish()
        # What went to pieces under a fault was to be found out.
        assert (status, run.leftovers()) == (0, []), err
    assert json.loads(out)["cases"] == {"ok": 6, "failed": 1, "skipped": 1, "implausible": 0}
    records_by_case = by_case(records(tmp_path / "run"))
    assert records_by_case["ps", "mimic"]["status"] == "skipped"
    assert "looks at what others send" in records_by_case["ps", "mimic"]["error"]["message"]
    assert records_by_case["ps", "flip"]["error"]["type"] == "non-finite-loss"
    assert (
        "under faults (worker 3 sign-flip scale=1e+20)" in records_by_case["ps", "flip"]["error"]["message"]
    )
    sound, flipped, lost, mimic = (
        records_by_case["robust-ps", scenario] for scenario in ("clean", "flip", "lost", "mimic")
    )
    assert sound["method"]["faults"] == []
    assert flipped["method"]["faults"] == ["worker 3: sign-flip scale=1e+20"]
    assert flipped["aggregation"]["n_faulty"] == 1
    n_steps = lost["aggregation"]["n_steps"]
    assert n_steps > 30
    assert lost["aggregation"]["not_finite"] == [0, 0, 0, n_steps, 0]
    assert lost["step_s"]["p50"] > 0.02
    assert sound["aggregation"]["rule_s"] > 0
    for record in (sound, flipped, lost, mimic):
        # After so few steps three times what chance would give.
        assert record["evaluation"]["metrics"]["accuracy"] > 0.3
        assert record["evaluation"]["step"] == sound["evaluation"]["step"]
        assert record["equivalence"]["checked"] is False
    assert records_by_case["ps", "clean"]["equivalence"]["equivalent"] is True
    gathered = records_by_case["robust-all-reduce", "flip"]["aggregation"]
    assert gathered["chosen"][3] == 0
    assert sum(gathered["chosen"]) == 2 * gathered["n_steps"]
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Accuracy under faults: digits-mlp" in page
    assert "diverged" in page


def test_a_worker_that_dies_ends_its_case_once_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "dead.yaml").write_text(DEAD)
    with watched(["run", "dead.yaml", "--out", "run"], tmp_path) as run:
        status, _, err = run.finish()
        assert (status, run.leftovers()) == (0, []), err
    assert "run again" not in err
    (record,) = records(tmp_path / "run")
    assert (record["status"], record["error"]["type"]) == ("failed", "killed-by-fault")
    assert "worker 2: the injected fault killed it at step 3" in record["error"]["message"]


def test_a_workload_that_cannot_be_evaluated_is_told_before_it_is_measured(tmp_path: Path) -> None:
    arguments = ["run", "quickstart", "--workloads", "linear-regression", "--strategies", "single"]
    with watched([*arguments, "--set", "measure.evaluate=true", "--out", "run"], tmp_path) as run:
        status, _, err = run.finish()
        assert status == 2, err
    (record, *_) = records(tmp_path / "run")
    assert "must be a workload with a method evaluate()" in record["error"]["message"]
