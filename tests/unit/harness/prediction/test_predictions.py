"""Predictions at other numbers of workers and links, from hand-made profiles and costs."""

from dataclasses import replace
from pathlib import Path

import pytest
from planned_steps import BATCH, STEP, USUAL, profile

from harness.errors import UsageError
from harness.experiment.references import parse_strategy
from harness.prediction.observations import ProfiledWorkload, batch_of
from harness.prediction.predictions import Predicted, Question, predict
from harness.prediction.probe import Identity, Probe, read_probe

WORKLOAD = ProfiledWorkload(
    name="hand-made",
    params={"units": 3},
    step=STEP,
    batch_size=BATCH,
    profiles={
        BATCH: profile(compute_s=0.040, examples=BATCH),
        BATCH // 2: profile(compute_s=0.022, examples=BATCH // 2),
    },
    idle_s={BATCH: 0.001, BATCH // 2: 0.002},
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
    identity=MACHINE, costs=USUAL, spreads={"tcp": 0.1}, most_bytes=1 << 40, n_steps=9, run="probe-1"
)


def predicted(strategy: str, n_workers: int, link_mbit: float | None = None, probe: Probe = PROBE):
    question = Question(workers=n_workers, replicas=1, batch_size=BATCH, link_mbit=link_mbit)
    return predict(WORKLOAD, parse_strategy(strategy, field="strategies"), question, probe)


def test_a_profile_lies_on_the_line_through_those_measured() -> None:
    quarter = WORKLOAD.profile(BATCH // 4)
    assert quarter.compute_s == pytest.approx(0.013)
    assert quarter.update_s == WORKLOAD.profiles[BATCH].update_s
    assert (quarter.examples, WORKLOAD.is_between(BATCH // 4)) == (BATCH // 4, False)
    assert WORKLOAD.profile(BATCH // 2) is WORKLOAD.profiles[BATCH // 2]
    assert WORKLOAD.waiting_s(BATCH // 4) == 0.002


def test_one_profile_gives_computation_in_proportion() -> None:
    alone = replace(WORKLOAD, profiles={BATCH: WORKLOAD.profiles[BATCH]})
    assert alone.profile(BATCH // 4).compute_s == pytest.approx(0.010)


def test_no_profile_is_less_than_nothing() -> None:
    steep = replace(WORKLOAD, profiles={8: profile(compute_s=0.010), 4: profile(compute_s=0.001)})
    assert steep.profile(2).compute_s > 0


def test_a_batch_follows_the_experiments_rule() -> None:
    assert batch_of(WORKLOAD, {"measure": {"batch": "global"}}, 64) == BATCH
    assert batch_of(WORKLOAD, {}, 64) == BATCH
    assert batch_of(WORKLOAD, {"measure": {"batch": "per-replica"}}, 64) == 64 * BATCH


def test_a_prediction_has_an_interval_and_what_it_is_beyond() -> None:
    known, beyond = predicted("all-reduce", 2), predicted("all-reduce", 8)
    assert known.low_s < known.step_s < known.high_s
    assert known.high_s / known.step_s == pytest.approx(2.718281828**0.196, rel=1e-3)
    assert (known.extrapolated, beyond.extrapolated) == ((), ("examples per worker",))
    assert known.examples_per_s == pytest.approx(BATCH / known.step_s)
    little = replace(PROBE, most_bytes=1000)
    assert predicted("all-reduce", 2, probe=little).extrapolated == ("bytes of an exchange",)


@pytest.mark.parametrize(
    ("strategy", "n_workers", "link_mbit", "limit"),
    [
        ("none", 2, None, "computing"),
        ("all-reduce", 2, None, "computing"),
        ("all-reduce", 2, 10.0, "link"),
        ("ps", 512, None, "server"),
    ],
)
def test_what_takes_most_of_a_step_limits_it(strategy, n_workers, link_mbit, limit) -> None:
    assert predicted(strategy, n_workers, link_mbit).limited_by == limit


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
    with pytest.raises(UsageError, match="must have costs of tcp"):
        predicted("all-reduce", 2, probe=narrow)


def test_a_probe_is_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "probe.json"
    PROBE.write(path)
    assert read_probe(path) == PROBE


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
    predictions = [
        replace(predicted("none", 2), step_s=0.1),
        replace(predicted("ps", 2), step_s=1.0),
        replace(predicted("all-reduce", 2), step_s=2.0),
        replace(predicted("ps", 8), step_s=3.0),
        replace(predicted("all-reduce", 8), step_s=2.0),
        replace(predicted("ps", 64), step_s=9.0),
        replace(predicted("all-reduce", 64), step_s=2.0),
    ]
    answer = Predicted(
        predictions=tuple(predictions),
        workloads={WORKLOAD.title: WORKLOAD},
        probe=PROBE,
        probe_path=Path("probe.json"),
        run_dir=Path("runs/mine"),
    )
    assert list(answer.crossings()) == [
        "fastest, hand-made:units=3 without a limit: ps from 2 workers, then all-reduce from 8 workers"
    ]
    assert answer.efficiency(predictions[1]) == pytest.approx(0.022 + 0.002 + 0.002)
    document = answer.to_document()
    assert [case["strategy"] for case in document["cases"]] == [p.strategy.name for p in predictions]
    assert {"workload", "workers", "replicas", "link_mbit", "step_s", "interval", "examples_per_s"} <= set(
        document["cases"][0]
    )
