"""Predictions of a run's own cases, from hand-made profiles and costs."""

from dataclasses import replace
from pathlib import Path

import pytest
from planned_steps import BATCH, STEP, USUAL, profile
from synthetic_run import NONE, SINGLE, Case, write_run
from test_predictions import PROBE

from harness.atomic_files import write_json
from harness.experiment.chosen_strategy import choose
from harness.experiment.references import StrategyRef
from harness.prediction import measured_cases
from harness.prediction.costs import CollectiveCost
from harness.prediction.measured_cases import is_predicted, measured_case_predictions
from harness.prediction.observations import profiled_workloads
from harness.prediction.predictions import planned_for, simulated
from harness.prediction.probe import identity_of
from harness.prediction.profile import StoredProfile
from harness.prediction.timelines import timelines
from harness.records.record import CORES_SHARED
from harness.records.run_documents import PLAN, PROFILE
from harness.records.stored_run import StoredRun, load_run
from strategies.topology import Topology

SHAPE = {"workload": "w", "batch_size": BATCH, "p50_s": 0.02, "cpu_s": 0.02}
CONTROL = Case(**{**SHAPE, **NONE})
CASES = [
    Case(**SHAPE, **SINGLE),
    CONTROL,
    Case(**SHAPE, strategy="all-reduce"),
    Case(**SHAPE, strategy="ps"),
    Case(**SHAPE, strategy="tf-multi-worker-mirrored"),
    Case(**SHAPE, strategy="ps", link_mbit=(100.0, 1000.0)),
    Case(**SHAPE, strategy="fully-sharded", faults=("worker 1: slow",)),
]


def with_profile(run_dir: Path) -> StoredRun:
    """A run whose control has a profile, as it is written after its first repeat."""
    import json

    run = load_run(run_dir)
    for record in run.records:
        if record.control or record.strategy == "none":
            own = profile(compute_s=0.018, update_s=0.002, examples=BATCH // 2)
            document = StoredProfile(step=STEP, profile=own).to_document()
            path = run.repeat_dir(record) / PROFILE
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(document))
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    return with_profile(write_run(tmp_path_factory.mktemp("own") / "run", CASES, n_repeats=1))


@pytest.fixture(autouse=True)
def probes(run: StoredRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of stored probes, with one of the run's machine."""
    folder = tmp_path / "probes"
    folder.mkdir()
    monkeypatch.setattr("harness.prediction.probe.PROBES", folder)
    PROBE.write(identity_of(run).probe_path)
    return folder


def test_each_case_with_exchanges_and_a_plan_is_predicted(run: StoredRun) -> None:
    predictions, reasons = measured_case_predictions(run)
    assert reasons == []
    strategies = {record.case: record.strategy for record in run.records}
    assert sorted(strategies[case] for case in predictions) == ["all-reduce", "ps"]
    for prediction in predictions.values():
        assert prediction.question.batch_size == BATCH
        assert 0.02 < prediction.step_s < 0.2


def test_an_edited_plan_is_predicted_from_the_plan_that_its_repeat_stored(run: StoredRun) -> None:
    predictions, _ = measured_case_predictions(run)
    usual = next(r for r in run.records if r.strategy == "all-reduce")
    mine = replace(usual, case="mine", strategy="plan-mine")
    others = tuple(r for r in run.records if r is not usual)
    assert "mine" not in measured_case_predictions(replace(run, records=(*others, mine)))[0]
    (workload,) = profiled_workloads(run)
    topology = Topology(replicas_per_task=(1, 1), batch_size=BATCH)
    plan = choose(StrategyRef(name="all-reduce")).plan(workload.step, topology)
    write_json(run.repeat_dir(mine) / PLAN, plan.model_dump(mode="json"))
    own, _ = measured_case_predictions(replace(run, records=(*others, mine)))
    assert own["mine"].step_s == predictions[usual.case].step_s
    assert str(own["mine"].strategy) == "plan-mine"


def test_a_twin_is_predicted_like_its_strategy(run: StoredRun) -> None:
    usual = next(r for r in run.records if r.strategy == "ps" and is_predicted(r))
    twin = replace(usual, case="twin", strategy_params={"aa": True}, is_twin=True)
    predictions, _ = measured_case_predictions(replace(run, records=(*run.records, twin)))
    assert predictions["twin"] == predictions[usual.case]


def test_what_the_probe_lacks_is_one_reason(run: StoredRun) -> None:
    path = identity_of(run).probe_path
    replace(PROBE, costs=replace(USUAL, collectives={"tcp": CollectiveCost()})).write(path)
    usual = next(r for r in run.records if r.strategy == "all-reduce")
    params = [{"compressor": "topk"}, {"compressor": "topk", "chunk_size": 1}, {"transport": "ring"}]
    others = [
        replace(usual, case=f"other-{n}", strategy_params=own, strategy_class="bounded")
        for n, own in enumerate(params)
    ]
    predictions, (reason,) = measured_case_predictions(replace(run, records=(*run.records, *others)))
    assert predictions == measured_case_predictions(run)[0]
    assert reason == (
        f"{path} has no costs of collectives, topk; predict such cases by "
        '`stratbench probe --set \'strategies=[none, "all-reduce:transport=ring", '
        '"all-reduce:compressor=topk"]\' --out FILE` and '
        f"`stratbench predict {run.path} --probe FILE`"
    )


def test_unknown_waits_for_cores_are_not_predicted(run: StoredRun) -> None:
    """Two threads per worker share two cores: how long each waits is unknown."""
    assert any(map(is_predicted, run.records))
    for record in run.records:
        assert record.method is not None
        method = replace(record.method, cores_per_worker=2.0)
        notes = (f"{CORES_SHARED}: 4 cores wanted, 2 available",)
        assert not is_predicted(replace(record, method=method, notes=notes))


def test_what_is_stored_is_not_predicted_again(run: StoredRun) -> None:
    first = next(iter(measured_case_predictions(run)[0]))
    stored = replace(run, predictions={first: None})
    assert first not in measured_case_predictions(stored)[0]


def test_a_machine_without_a_probe_leaves_the_predictions_of_others(run: StoredRun, probes: Path) -> None:
    on_docker = []
    for record in run.records:
        assert record.method is not None
        method = replace(record.method, cores_per_worker=4)
        on_docker.append(replace(record, provider="docker", case=f"{record.case}-docker", method=method))
    both = replace(run, records=(*on_docker, *run.records))
    predictions, (reason,) = measured_case_predictions(both)
    assert predictions == measured_case_predictions(run)[0]
    assert reason == (
        f"probe: must be in {probes} for docker workers with cpu and cores_per_worker=4, got none; make "
        "one by `stratbench probe --set cluster.provider=docker --set cluster.cores_per_worker=4`"
    )


def test_cases_of_the_run_have_timelines(run: StoredRun) -> None:
    workloads = profiled_workloads(run)
    predictions = list(measured_case_predictions(run)[0].values())
    steps = {t.strategy: t for t in timelines(run, workloads, predictions, PROBE)}
    assert set(steps) == {"all-reduce", "ps"}
    reduce = [p for p in predictions if p.strategy.name == "all-reduce"]
    assert [t.strategy for t in timelines(run, workloads, reduce, PROBE)] == ["all-reduce"]
    for step in steps.values():
        assert {span.kind for span in step.spans} == {"computing", "exchange", "transfer"}
        assert all(span.start_s < span.end_s for span in step.spans)
    assert {span.tasks for span in steps["all-reduce"].spans} == {"workers 0\N{EN DASH}1"}


def test_workers_that_share_cores_have_timelines(run: StoredRun) -> None:
    shared = replace(
        run,
        records=tuple(
            replace(r, notes=("workers share cores: 2 cores wanted, 1 available",)) for r in run.records
        ),
    )
    workloads = profiled_workloads(shared)
    predictions = list(measured_case_predictions(shared)[0].values())
    assert {p.question.n_shared for p in predictions} == {2}
    assert len(list(timelines(shared, workloads, predictions, PROBE))) == len(predictions)


def test_a_timeline_is_as_long_as_the_simulated_step(run: StoredRun) -> None:
    (workload,) = workloads = profiled_workloads(run)
    predictions = list(measured_case_predictions(run)[0].values())
    for step in timelines(run, workloads, predictions, PROBE):
        record = next(record for record in run.records if record.case == step.case)
        question = measured_cases.question_of(record)
        strategy = measured_cases.strategy_of(record)
        planned = planned_for(workload, choose(strategy), question, PROBE)
        whole = simulated(planned, question, PROBE)
        end_s = max(span.end_s for span in step.spans)
        assert end_s == pytest.approx(whole.timeline.end_s, rel=0.01)
