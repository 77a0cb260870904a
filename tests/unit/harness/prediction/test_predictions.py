"""Predictions at other numbers of workers and links, from hand-made profiles and costs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from planned_steps import BATCH, STEP, USUAL, profile

from harness.errors import UsageError
from harness.experiment.chosen_strategy import choose
from harness.experiment.model import Computation
from harness.experiment.references import parse_strategy
from harness.prediction.conditions import conditions
from harness.prediction.costs import CollectiveCost
from harness.prediction.predictions import Predicted, Question, predict, predict_cases
from harness.prediction.probe import Identity, Probe, read_probe
from harness.prediction.profiled_workload import ProfiledStep, ProfiledWorkload, Updates, suiting
from strategies.plan.faults import Fault

WORKLOAD = ProfiledWorkload(
    name="hand-made",
    params={"units": 3},
    step=STEP,
    batch_size=BATCH,
    measured={
        BATCH: ProfiledStep(profile=profile(compute_s=0.040, examples=BATCH), idle_s=0.001),
        BATCH // 2: ProfiledStep(profile=profile(compute_s=0.022, examples=BATCH // 2), idle_s=0.002),
    },
)
MACHINE = Identity(
    provider="local",
    device="cpu",
    cores=1.0,
    cpu_model="A processor",
    n_cores=2,
    kernel="6.1",
    tensorflow="2.21.0",
)
PROBE = Probe(
    identity=MACHINE,
    costs=USUAL,
    spreads={"tcp": 0.1},
    most_bytes=1 << 40,
    most_workers=2,
    n_steps=9,
    run="probe-1",
)


def predicted(strategy: str, n_workers: int, link_mbit: float | None = None, probe: Probe = PROBE, **others):
    question = Question(workers=n_workers, batch_size=BATCH, link_mbit=link_mbit, **others)
    reference = parse_strategy(strategy, field="strategies")
    return predict(WORKLOAD, reference, choose(reference), question, probe)


def cases(*settings: str, strategies: str = "[all-reduce]", workers: str = "[2, 8]", probe: Probe = PROBE):
    """Predictions of an experiment with changes, and their notes."""
    document = {"name": "made-up", "workloads": [{"name": "hand-made", "units": 3}], "strategies": ["none"]}
    changes = [f"strategies={strategies}", f"cluster.workers={workers}", *settings]
    return predict_cases([WORKLOAD], conditions(document, settings=changes, of_run=True), probe)


def test_a_profile_lies_on_the_line_through_those_measured() -> None:
    quarter = WORKLOAD.profile(BATCH // 4)
    assert quarter.compute_s == pytest.approx(0.013)
    assert quarter.update_s == WORKLOAD.measured[BATCH].profile.update_s
    assert (quarter.examples, WORKLOAD.is_between(BATCH // 4)) == (BATCH // 4, False)
    assert WORKLOAD.profile(BATCH // 2) is WORKLOAD.measured[BATCH // 2].profile
    assert WORKLOAD.nearest(BATCH // 4).idle_s == 0.002


def test_one_profile_gives_computation_in_proportion() -> None:
    alone = replace(WORKLOAD, measured={BATCH: WORKLOAD.measured[BATCH]})
    assert alone.profile(BATCH // 4).compute_s == pytest.approx(0.010)


def test_no_profile_is_less_than_nothing() -> None:
    steep = replace(
        WORKLOAD,
        measured={
            n: ProfiledStep(profile=profile(compute_s=s, examples=n)) for n, s in ((8, 0.010), (4, 0.001))
        },
    )
    assert steep.profile(2).compute_s > 0


@pytest.mark.parametrize(
    ("settings", "batches"),
    [
        ([], (BATCH, BATCH)),
        (["measure.batch=per-replica"], (2 * BATCH, 8 * BATCH)),
        (["workloads.0.batch_size=64"], (64, 64)),
        (["workloads.0.batch_size=64", "measure.batch=per-replica"], (128, 512)),
    ],
)
def test_a_batch_follows_the_experiment(settings: list[str], batches: tuple[int, int]) -> None:
    predictions, _ = cases(*settings)
    assert tuple(p.question.batch_size for p in predictions) == batches


def test_a_workload_without_a_profile_is_refused() -> None:
    with pytest.raises(UsageError, match="must be profiled, got other, and profiles of hand-made:units=3"):
        cases("workloads=[other]")
    predictions, notes = cases(
        "workloads=[{name: hand-made, units: 3}, other]", strategies="[all-reduce, ps]"
    )
    assert len(predictions) == 4
    (note,) = notes
    assert note.startswith("workloads: must be profiled, got other")


def test_a_profile_is_titled_as_a_workload_is_written() -> None:
    workload = replace(WORKLOAD, params={"units": 3, "bias": True})
    assert workload.title == "hand-made:bias=true,units=3"


def test_every_case_of_the_experiment_is_predicted() -> None:
    predictions, notes = cases(
        "cluster.link.rate_mbit=[null, 100]", strategies="[none, single, ps, tf-mirrored]"
    )
    questions = {(p.strategy.name, p.question.workers, p.question.link_mbit) for p in predictions}
    several = {(name, n, rate) for name in ("none", "ps") for n in (2, 8) for rate in (None, 100.0)}
    assert questions == {("single", 1, None)} | several
    assert [note.partition(":")[0] for note in notes] == ["tf-mirrored"]
    assert next(p for p in predictions if p.strategy.name == "single").efficiency == pytest.approx(1.0)


def test_workers_that_share_a_core_compute_one_after_the_other() -> None:
    alone, shared = (predicted("none", 4, n_shared=n) for n in (None, 1))
    assert shared.step_s == pytest.approx(4 * alone.step_s, rel=0.2)
    assert (shared.limited_by, shared.efficiency) == ("computing", pytest.approx(1.0))


def test_exchanges_of_workers_that_share_a_core_limit_a_step_as_computation_does() -> None:
    exchanging_s = 1.5 * WORKLOAD.profile(BATCH // 2).step_s
    probe = replace(PROBE, costs=PROBE.costs.with_values({"tcp.step_s": exchanging_s}))
    limits = {predicted("all-reduce", 2, n_shared=n, probe=probe).limited_by for n in (None, 1)}
    assert limits == {"exchanges"}


def test_one_reason_is_one_note() -> None:
    _, (note,) = cases(strategies="[none, ps, ps-load-balancing, all-reduce]", workers="[2, 1000000]")
    assert note.startswith("none, ps, ps-load-balancing, all-reduce: ")


def test_a_winner_whose_result_differs_is_marked() -> None:
    assert predicted("local-sgd", 2).title == "local-sgd (inexact)"
    assert predicted("ps", 2).title == "ps"


def test_a_slow_worker_delays_the_step_of_all_that_wait_for_it() -> None:
    slow = "faults=[{worker: 1, kind: slow, delay_ms: 200}]"
    (usual,), _ = cases(workers="2")
    (late,), _ = cases(slow, workers="2")
    assert late.step_s - usual.step_s == pytest.approx(0.2, rel=0.1)
    assert (late.limited_by, late.efficiency > usual.efficiency) == ("computing", True)
    assert late.to_document()["faults"] == [{"worker": 1, "kind": "slow", "delay_ms": 200.0}]
    (alone,), _ = cases(slow, workers="2", strategies="[none]")
    assert alone.question.faults == ()


@pytest.mark.parametrize("strategy", ["all-reduce", "sharded-ps", "partitioned-ps", "fully-sharded"])
def test_one_slow_worker_of_many_counts(strategy: str) -> None:
    """It is simulated even if others have more to send."""
    slow = Fault(worker=60, kind="slow", delay_ms=500.0)
    late_s, usual_s = predicted(strategy, 64, faults=(slow,)).step_s, predicted(strategy, 64).step_s
    # A server has less to do at a time if one worker comes late.
    assert 0.5 < late_s < usual_s + 0.5 + 1e-9


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault(worker=0, kind="dead"), "must be slow workers for predictions, got dead"),
        (Fault(worker=2, kind="slow", delay_ms=1.0), "must be one of 2 workers, counted from 0, got 2"),
    ],
)
def test_other_faults_are_refused(fault: Fault, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        predicted("all-reduce", 2, faults=(fault,))


def test_more_cores_are_for_exchanges_alone() -> None:
    (usual,), no_notes = cases(workers="2")
    (wide,), (note,) = cases("cluster.cores_per_worker=4", workers="2")
    assert no_notes == []
    assert "several threads are not simulated yet" in note
    assert WORKLOAD.profile(BATCH // 2).step_s < wide.step_s <= usual.step_s
    assert wide.extrapolated == ("cores per worker",)


def test_examples_cost_the_hours_of_all_workers() -> None:
    (free,), _ = cases(workers="8")
    (priced,), _ = cases("cluster.price_per_hour=0.5", workers="8")
    hours = 8 * priced.step_s / BATCH * 1e6 / 3600
    assert priced.worker_hours_per_million_examples == pytest.approx(hours)
    assert priced.cost_per_million_examples == pytest.approx(0.5 * hours)
    document = free.to_document()
    assert document["cost_per_million_examples"] is None
    assert document["worker_hours_per_million_examples"] == pytest.approx(hours)


def test_a_prediction_has_an_interval_and_what_it_is_beyond() -> None:
    known, beyond = predicted("all-reduce", 2), predicted("all-reduce", 8)
    assert known.low_s < known.step_s < known.high_s
    assert known.high_s / known.step_s == pytest.approx(2.718281828**0.196, rel=1e-3)
    assert (known.extrapolated, beyond.extrapolated) == ((), ("examples per worker", "workers"))
    assert predicted("none", 8).extrapolated == ("examples per worker",)
    assert known.examples_per_s == pytest.approx(BATCH / known.step_s)
    little = replace(PROBE, most_bytes=1000)
    assert predicted("all-reduce", 2, probe=little).extrapolated == ("bytes of an exchange",)


@pytest.mark.parametrize(
    ("strategy", "n_workers", "link_mbit", "cores", "limit"),
    [
        ("none", 2, None, None, "computing"),
        ("all-reduce", 2, None, None, "computing"),
        ("all-reduce", 2, 10.0, None, "link"),
        ("ps", 512, None, None, "server"),
        ("ps", 512, None, 4.0, "server"),
    ],
)
def test_what_takes_most_of_a_step_limits_it(strategy, n_workers, link_mbit, cores, limit) -> None:
    assert predicted(strategy, n_workers, link_mbit, cores=cores).limited_by == limit


@pytest.mark.parametrize(
    ("strategy", "n_workers", "message"),
    [
        ("tf-multi-worker-mirrored", 2, "stratbench plans, got tf-multi-worker-mirrored"),
        ("all-reduce", 2 * BATCH, "each replica needs an example"),
        ("nothing", 2, "nothing"),
        ("robust-ps", 4, "a rule of robust aggregation"),
        ("ps:staleness=2", 4, "updates that do not wait for all workers"),
        ("all-reduce:accumulate=4", 4, "micro-batches"),
    ],
)
def test_a_strategy_that_cannot_be_predicted_is_refused_in_a_line(strategy, n_workers, message) -> None:
    with pytest.raises(UsageError, match=message) as refusal:
        predicted(strategy, n_workers)
    assert "\n" not in refusal.value.message


def test_exchanges_that_were_not_probed_are_refused() -> None:
    narrow = replace(PROBE, costs=replace(USUAL, collectives={}))
    with pytest.raises(UsageError, match="must have costs of tcp") as refusal:
        predicted("all-reduce", 2, probe=narrow)
    assert """--set 'strategies=[none, "all-reduce:transport=tcp"]' --out FILE""" in refusal.value.message


@pytest.mark.parametrize(
    ("device", "strategy", "transport"),
    [("gpu", "all-reduce", "nccl"), ("tpu-emulated", "tpu-replicate", "cores")],
)
def test_every_transport_with_costs_is_simulated(device: str, strategy: str, transport: str) -> None:
    # Rows of tables are gathered by TensorFlow's collectives on GPUs, too.
    costs = replace(USUAL, collectives={**USUAL.collectives, transport: CollectiveCost()})
    probe = replace(PROBE, identity=replace(MACHINE, device=device), costs=costs)
    known = predicted(strategy, 2, probe=probe)
    slower = replace(probe, costs=costs.with_values({f"{transport}.sum_s": 1e-7}))
    assert predicted(strategy, 2, probe=slower).step_s > known.step_s > predicted("none", 2).step_s
    assert predicted(strategy, 2, link_mbit=10.0, probe=probe).limited_by == "link"


def test_a_probe_is_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "probe.json"
    PROBE.write(path)
    assert read_probe(path) == PROBE


@pytest.mark.parametrize("cost", [-1.0, float("inf"), float("nan")])
def test_damaged_costs_are_no_probe(tmp_path: Path, cost: float) -> None:
    path = tmp_path / "probe.json"
    document = PROBE.to_document()
    document["costs"]["servers"]["message_s"] = cost
    path.write_text(json.dumps(document))
    with pytest.raises(UsageError, match="must be a probe that `stratbench probe` wrote"):
        read_probe(path)


def test_a_probe_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "probe.json"
    path.write_text(json.dumps({**PROBE.to_document(), "schema": 3}))
    with pytest.raises(UsageError, match="got a probe of another version; make one by"):
        read_probe(path)


@pytest.mark.parametrize("content", [None, "", "{}", "[1]"])
def test_other_files_are_no_probes(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "probe.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match="must be a probe that `stratbench probe` wrote"):
        read_probe(path)


def test_another_machine_differs_in_name_and_facts() -> None:
    other = replace(MACHINE, cpu_model="Another", tensorflow="2.22.0")
    assert other.name != MACHINE.name
    assert MACHINE.name.startswith("local-cpu-")
    assert MACHINE.differences(other) == (
        "cpu model Another instead of A processor",
        "tensorflow 2.22.0 instead of 2.21.0",
    )
    assert MACHINE.differences(MACHINE) == ()


def test_the_fastest_strategy_is_listed_by_number_of_workers() -> None:
    alone = predicted("single", 1)
    predictions = [
        replace(predicted("none", 2), step_s=0.1),
        replace(predicted("ps", 2), step_s=1.0),
        replace(predicted("all-reduce", 2), step_s=2.0),
        replace(predicted("ps", 8), step_s=3.0),
        replace(predicted("all-reduce", 8), step_s=2.0),
        replace(predicted("ps", 64), step_s=9.0),
        replace(predicted("all-reduce", 64), step_s=6.0),
        replace(alone, step_s=5.0),
    ]
    answer = Predicted(
        predictions=predictions,
        probe=PROBE,
        probe_path=Path("probe.json"),
        run_dir=Path("runs/mine"),
        changes=("measure.batch=global",),
    )
    (line,) = answer.fastest()
    assert line == (
        "fastest, hand-made:units=3 without a limit: ps from 2 workers, then all-reduce from 8 workers, then "
        "single from 64 workers"
    )
    document = answer.to_document()
    assert document["changes"] == ["measure.batch=global"]
    assert [case["strategy"] for case in document["cases"]] == [p.strategy.name for p in predictions]
    assert {"workload", "workers", "replicas", "link_mbit", "step_s", "interval", "examples_per_s"} <= set(
        document["cases"][0]
    )


def test_batch_sizes_are_predicted_and_listed_apart() -> None:
    both = "workloads=[{name: hand-made, units: 3}, {name: hand-made, units: 3, batch_size: 16}]"
    usual = replace(WORKLOAD, usual_batch_size=BATCH // 2)
    document = {"name": "made-up", "workloads": ["hand-made"], "strategies": ["all-reduce", "ps"]}
    spec = conditions(document, settings=[both, "cluster.workers=[2, 4]"], of_run=True)
    predictions, _ = predict_cases([usual], spec, PROBE)
    assert [p.question.batch_size for p in predictions] == [BATCH // 2] * 4 + [16] * 4
    answer = Predicted(predictions=predictions, probe=PROBE, probe_path=Path("p"), run_dir=Path("r"))
    assert [line.partition(": ")[0] for line in answer.fastest()] == [
        f"fastest, hand-made:units=3 with batch {BATCH // 2} without a limit",
        "fastest, hand-made:units=3 with batch 16 without a limit",
    ]
    spec = conditions(document, settings=[both, "measure.batch=per-replica"], of_run=True)
    predictions, _ = predict_cases([usual], spec, PROBE)
    assert {p.question.requested_batch for p in predictions} == {BATCH // 2, 16}


def test_each_way_of_computing_has_the_profile_that_suits_best() -> None:
    plain = Updates(fused=False)
    own = replace(WORKLOAD, updates=plain, batch_size=256)
    low = replace(WORKLOAD, computation=Computation(precision="bfloat16"))
    small = replace(WORKLOAD, batch_size=16, usual_batch_size=16)
    assert suiting([WORKLOAD, low, own], plain) == [own, low]
    assert suiting([own], Updates(merges_rows=True)) == [own]
    assert suiting([WORKLOAD, small], Updates()) == [small]
    assert suiting([small, WORKLOAD], Updates(), BATCH - 1) == [WORKLOAD]


def test_strategies_have_one_batch_whatever_their_profile() -> None:
    own = replace(WORKLOAD, updates=Updates(fused=False), batch_size=16)
    document = {"name": "made-up", "workloads": [{"name": "hand-made", "units": 3}], "strategies": ["none"]}
    spec = conditions(document, settings=["strategies=[ps, 'ps:fused_update=false']"], of_run=True)
    predictions, _ = predict_cases([own, replace(WORKLOAD, usual_batch_size=BATCH)], spec, PROBE)
    assert {(str(p.strategy), p.question.batch_size) for p in predictions} == {
        ("ps", BATCH),
        ("ps:fused_update=false", BATCH),
    }
