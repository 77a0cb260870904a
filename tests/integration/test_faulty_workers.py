"""Faulty workers from an experiment's file to its report, and what the command says of them."""

import json
from dataclasses import dataclass
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
# A baseline is run again after any failure that is not of its faults.
compare: {baseline: "robust-ps:rule=median,f=1"}
# What each rule makes of each fault, contracts hold; here each is told of once.
matrix:
  exclude:
    - {strategy: robust-all-reduce, faults: clean}
    - {strategy: robust-all-reduce, faults: lost}
    - {strategy: robust-all-reduce, faults: mimic}
    - {strategy: robust-all-reduce, faults: dead}
    - {strategy: ps, faults: lost}
    - {strategy: ps, faults: dead}
faults:
  clean: []
  flip: [{worker: 3, kind: sign-flip, scale: 1.0e+20}]
  lost: [{worker: 3, kind: nan}, {worker: 1, kind: slow, delay_ms: 20.0}]
  mimic: [{worker: 4, kind: mimic}]
  dead: [{worker: 2, kind: dead, from_step: 3}]
"""


@dataclass(frozen=True, kw_only=True)
class Ran:
    """The run, when it has ended."""

    status: int
    out: str
    err: str
    leftovers: list[str]
    folder: Path


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("faulty")
    (folder / "faulty.yaml").write_text(EXPERIMENT)
    with watched(["run", "faulty.yaml", "--out", "run", "--json"], folder) as run:
        status, out, err = run.finish()
        return Ran(status=status, out=out, err=err, leftovers=run.leftovers(), folder=folder / "run")


def by_case(results: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(record["strategy"], record["method"]["scenario"]): record for record in results}


def test_faults_are_met_counted_and_told(ran: Ran) -> None:
    # What went to pieces under a fault was to be found out.
    assert ran.status == 0, ran.err
    assert json.loads(ran.out)["cases"] == {"ok": 6, "failed": 2, "skipped": 1, "implausible": 0}
    records_by_case = by_case(records(ran.folder))
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
    page = (ran.folder / "report.html").read_text()
    assert "Accuracy under faults: digits-mlp" in page
    assert "diverged" in page


def test_a_worker_that_dies_ends_its_case_once_and_nothing_is_left(ran: Ran) -> None:
    assert (ran.status, ran.leftovers) == (0, []), ran.err
    assert "run again" not in ran.err
    record = by_case(records(ran.folder))["robust-ps", "dead"]
    assert (record["status"], record["error"]["type"]) == ("failed", "killed-by-fault")
    assert "worker 2: the injected fault killed it at step 3" in record["error"]["message"]
