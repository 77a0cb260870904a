"""`stratbench predict`: what it asks for, and its table."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from called import Pipeline, call, document

from harness.experiment.load import load_experiment
from harness.experiment.references import parse_strategy
from harness.prediction.costs import Costs
from harness.prediction.predictions import Predicted, Prediction, Question
from harness.prediction.probe import Identity, Probe
from harness.records.run_documents import describe
from strategies.plan.faults import Fault

MACHINE = Identity(
    provider="local", device="cpu", cores=1.0, cpu_model=None, n_cores=2, kernel=None, tensorflow=None
)
PROBE = Probe(
    identity=MACHINE, costs=Costs(), spreads={}, most_bytes=1, most_workers=2, n_steps=54, run="probe-1"
)
LONG = Prediction(
    workload="wide-mlp:units=16",
    strategy=parse_strategy("all-reduce:compressor=powersgd", field="strategies"),
    params={},
    question=Question(workers=512, batch_size=65536, link_mbit=100.0, price_per_hour=0.35),
    step_s=0.1234,
    low_s=0.1,
    high_s=0.152,
    efficiency=0.5,
    payload_bytes=123_000_000,
    busiest_bytes=1,
    memory_bytes=123_000_000,
    limited_by="exchanges",
    extrapolated=("workers",),
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pipeline: Pipeline) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.cli.commands.predict.isolate", lambda *_, **__: None)
    monkeypatch.setattr("harness.preflight.check_experiment", lambda spec: pipeline.asked.append(spec.name))
    pipeline.predicted = Predicted(
        predictions=[LONG],
        probe=PROBE,
        probe_path=Path("probe.json"),
        run_dir=Path("runs/x"),
        changes=("cluster.link.rate_mbit=100",),
        notes=("ps: cannot be predicted",),
    )
    return tmp_path


def run_folder(path: Path) -> None:
    """A run folder with the experiment `quickstart`."""
    spec = load_experiment("quickstart")
    path.mkdir(exist_ok=True)
    head = {"run": "run-1", "spec_hash": spec.spec_hash, "created_utc": "2026-11-28T17:00:00+00:00"}
    describe(path, head=head, experiment=spec.to_document(), environment={})


def test_an_experiment_is_profiled_and_its_conditions_predicted(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline
) -> None:
    options = ["--link", "1gbit,unlimited", "--price", "0.5", "--set", "cluster.cores_per_worker=2"]
    assert call(capsys, "predict", "quickstart", *options)[0] == 0
    *checked, request = pipeline.asked
    assert checked == ["profile", "probe"]
    cluster = request.spec.cluster
    assert (cluster.workers, cluster.link.rate_mbit, cluster.price_per_hour) == (
        (8, 64),
        (1000.0, None),
        {"cpu": 0.5},
    )
    assert request.changes == ["cluster.cores_per_worker=2", "cluster.price_per_hour=0.5"]
    assert (request.source.name, request.source.cluster.cores_per_worker) == ("profile", (2,))
    assert (request.probing.name, request.probing.cluster.cores_per_worker) == ("probe", (2,))


def test_numbers_of_workers_may_be_settings(capsys: pytest.CaptureFixture[str], pipeline: Pipeline) -> None:
    call(capsys, "predict", "quickstart", "--set", "cluster.workers=[3, 4]")
    assert pipeline.asked[-1].spec.cluster.workers == (3, 4)


def test_the_table_is_narrow_and_says_what_was_changed(capsys: pytest.CaptureFixture[str]) -> None:
    status, captured = call(capsys, "predict", "quickstart")
    lines = captured.out.splitlines()[1:]  # after the pipeline's own
    assert status == 0
    assert lines[:2] == [
        "changed: cluster.link.rate_mbit=100",
        "wide-mlp:units=16 · 512 workers · batch 65536 · links at 100 Mbit/s",
    ]
    headers = ("strategy", "ex/s", "eff.", "step, 95 %", "sent", "memory", "limited by", "cost/M")
    assert re.split(r"\s{2,}", lines[2]) == list(headers)
    assert "123 ms ±23 %" in lines[3]
    assert lines[3].endswith("0.0937")
    assert max(map(len, lines)) <= 100
    assert "note: ps: cannot be predicted" in lines


def test_without_a_price_only_json_has_costs(capsys: pytest.CaptureFixture[str], pipeline: Pipeline) -> None:
    free = replace(
        LONG, question=replace(LONG.question, price_per_hour=None, faults=(Fault(worker=1, kind="slow"),))
    )
    assert pipeline.predicted is not None
    pipeline.predicted = replace(pipeline.predicted, predictions=[free])
    assert "cost/M" not in call(capsys, "predict", "quickstart")[1].out
    (case,) = document(call(capsys, "predict", "quickstart", "--json")[1])["cases"]
    assert case["cost_per_million_examples"] is None
    assert case["worker_hours_per_million_examples"] == pytest.approx(512 * 0.1234 / 65536 * 1e6 / 3600)


def test_a_folder_named_like_an_experiment_is_meant_if_it_has_a_run(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline, folder: Path
) -> None:
    (folder / "quickstart").mkdir()
    assert call(capsys, "predict", "quickstart")[0] == 0
    assert pipeline.asked[-1].notes == ["quickstart is the experiment; the folder of this name has no run"]
    run_folder(folder / "quickstart")
    assert call(capsys, "predict", "quickstart")[0] == 0
    assert pipeline.asked[-1].source == Path("quickstart")
    assert pipeline.asked[-1].notes == ["quickstart is the run folder, not the experiment of this name"]


def test_a_run_is_predicted_under_its_own_experiment_with_changes(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline, folder: Path
) -> None:
    run_folder(folder / "mine")
    setting = "faults=[{worker: 1, kind: slow}]"
    assert call(capsys, "predict", "mine", "--set", setting, "--set", "cluster.cores_per_worker=4")[0] == 0
    (request,) = pipeline.asked
    assert request.spec.scenarios[0].faults[0].kind == "slow"
    assert (request.spec.cluster.cores_per_worker, request.spec.name) == ((4,), "quickstart")
    # The run itself was measured with one core.
    assert request.probing.cluster.cores_per_worker == (1,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mine", "--set", "measure.steps=3"], "set measure.steps: changes no prediction; use one of"),
        (["mine", "--out", "there"], "out: is for an experiment"),
        (["quickstart", "--price", "0"], "cluster.price_per_hour: must be the price of a worker's hour"),
        (["empty"], "must be a run folder made by `stratbench run`, got 'empty'"),
        (["quickstart", "--workers", "0"], "workers: needs numbers from 1"),
        (["quickstart", "--workers", "\u00b2"], "workers: needs numbers from 1"),
        (["quickstart", "--link", "fast"], "link: needs rates with a unit"),
        (["quickstart", "--link", "0mbit"], "link: needs rates with a unit"),
        (["quickstart", "--link", "none"], "or unlimited, got 'none'"),
        (["quickstart", "--strategies", "ps,nonsense"], "strategies: strategy 'nonsense' is not known"),
        (["quickstart", "--set", "cluster.replicas_per_worker=2"], "several replicas of a worker"),
        (["quickstart", "--set", "cluster.cores_per_worker=[1, 2]"], "must be one number for predictions"),
        (["quickstart", "--set", "cluster.provider=[local, docker]"], "must be one for predictions"),
        (["nothing-there"], "experiment: must be a file or a shipped experiment"),
    ],
)
def test_what_cannot_be_asked_costs_one_line(
    capsys: pytest.CaptureFixture[str], folder: Path, arguments: list[str], message: str
) -> None:
    run_folder(folder / "mine")
    (folder / "empty").mkdir()
    status, captured = call(capsys, "predict", *arguments)
    assert status == 2
    (line,) = captured.err.splitlines()
    assert message in line
