"""Profiles and observations of stored runs, and probes made from them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from planned_steps import STEP, profile

from harness.errors import UsageError
from harness.experiment.chosen_strategy import choose
from harness.experiment.references import StrategyRef
from harness.prediction.observations import observations, profiled_workloads
from harness.prediction.probe import identity_of, probe_of
from harness.prediction.profile import StoredProfile
from harness.prediction.profiled_workload import ProfiledStep, ProfiledWorkload, Updates, planned_step
from harness.prediction.step_model import PlannedStep
from harness.records.conditions import Machine, Method
from harness.records.outcome import Failure, StepSeconds
from harness.records.record import CORES_SHARED, Record
from harness.records.stored_run import StoredRun
from strategies.topology import Topology

METHOD = Method(
    seed=0, steps=10, warmup_rule="auto", interleave=True, batch_rule="global", cores_per_worker=1
)
EXAMPLES = 4096


def record(strategy: str = "none", *, workers: int = 2, step_s: float = 0.010, **changes: object) -> Record:
    usual = Record(
        run="run-1",
        case=f"{strategy}-{workers}",
        repeat=0,
        order=0,
        workload="hand-made",
        strategy=strategy,
        strategy_class="exact",
        control=strategy == "none",
        provider="local",
        device="cpu",
        workers=workers,
        replicas=1,
        status="ok",
        batch_size=EXAMPLES * workers,
        step_s=StepSeconds(n=10, mean=step_s, p50=step_s, p90=step_s, p99=step_s),
        cpu_s_per_step=(0.8 * step_s,) * workers,
        machine=Machine(cpu_model="A processor", n_cores=2),
        method=METHOD,
    )
    return replace(usual, **changes)


def stored(folder: Path, *records: Record, changes: dict[str, object] | None = None) -> StoredRun:
    """A run whose cases without exchanges have a profile, with changed times."""
    for item in records:
        if item.strategy == "none":
            document = StoredProfile(step=STEP, profile=profile(examples=EXAMPLES)).to_document()
            document["profile"] |= changes or {}
            place = folder / "cases" / item.case / str(item.repeat)
            place.mkdir(parents=True, exist_ok=True)
            (place / "profile.json").write_text(json.dumps(document))
    return StoredRun(
        path=folder,
        run="run-1",
        spec_hash="",
        created_utc="",
        experiment={},
        environment={},
        records=records,
        n_superseded=0,
        torn=False,
        damaged=(),
    )


def durations(run: StoredRun) -> Sequence[float]:
    return [own.measured[EXAMPLES].profile.step_s for own in profiled_workloads(run)]


def test_a_profile_is_scaled_to_the_processor_time_of_untraced_steps(tmp_path: Path) -> None:
    (workload,) = profiled_workloads(stored(tmp_path, record()))
    assert workload.measured[EXAMPLES].profile.step_s == pytest.approx(0.008)
    assert workload.nearest(EXAMPLES).idle_s == pytest.approx(0.002)
    assert (workload.title, workload.batch_size) == ("hand-made", 2 * EXAMPLES)


def test_of_workers_that_share_a_core_each_waits_for_the_others(tmp_path: Path) -> None:
    shared = record(
        step_s=0.018,
        cpu_s_per_step=(0.008, 0.008),
        notes=(f"{CORES_SHARED}: 2 cores wanted, 1 available",),
        machine=Machine(n_cores=1),
    )
    (workload,) = profiled_workloads(stored(tmp_path, shared))
    assert workload.measured[EXAMPLES].profile.step_s == pytest.approx(0.008)
    assert workload.nearest(EXAMPLES).idle_s == pytest.approx(0.002)


def test_of_three_workers_on_two_cores_two_take_turns(tmp_path: Path) -> None:
    shared = record(
        workers=3,
        step_s=0.018,
        cpu_s_per_step=(0.008,) * 3,
        notes=(f"{CORES_SHARED}: 3 cores wanted, 2 available",),
        machine=Machine(n_cores=2),
    )
    (workload,) = profiled_workloads(stored(tmp_path, shared))
    assert workload.nearest(EXAMPLES).idle_s == pytest.approx(0.002)


def test_workers_that_exchange_something_wait_for_the_slowest(tmp_path: Path) -> None:
    """The median of the largest of 2 normal values is 0.545 standard deviations above theirs, of 4, 0.998."""
    varied = StepSeconds(n=10, mean=0.010, p50=0.010, p90=0.010 + 1.2816 * 0.001, p99=0.012)
    (workload,) = profiled_workloads(stored(tmp_path, replace(record(), step_s=varied)))

    def waiting_s(strategy: str, n_workers: int) -> float:
        chosen = choose(StrategyRef(name=strategy))
        topology = Topology(replicas_per_task=(1,) * n_workers, batch_size=n_workers * EXAMPLES)
        return workload.waiting_s(planned_step(workload, chosen, topology))

    assert waiting_s("none", 4) == pytest.approx(0.002)
    assert waiting_s("all-reduce", 2) == pytest.approx(0.002)
    assert waiting_s("all-reduce", 4) == pytest.approx(0.002 + 0.000998 - 0.000545, rel=0.001)
    assert waiting_s("none", 4) < waiting_s("local-sgd", 4) < waiting_s("all-reduce", 4)


@pytest.mark.parametrize(("n_examples", "n_rows"), [(EXAMPLES, 50.0), (EXAMPLES // 2, 25.0)])
def test_measured_rows_are_sent(n_examples: int, n_rows: float) -> None:
    """The plan, whose bytes are an upper bound, has whole tables."""

    def planned(rows_per_example: float | None, rows: dict[str, float]) -> PlannedStep:
        table = STEP.variables[0].model_copy(update={"rows_per_example": rows_per_example})
        workload = ProfiledWorkload(
            name="hand-made",
            params={},
            step=STEP.model_copy(update={"variables": (table, *STEP.variables[1:])}),
            batch_size=EXAMPLES,
            measured={EXAMPLES: ProfiledStep(profile=replace(profile(examples=EXAMPLES), rows=rows))},
        )
        topology = Topology(replicas_per_task=(1, 1), batch_size=2 * n_examples)
        return planned_step(workload, choose(StrategyRef(name="ps")), topology)

    def sent_bytes(step: PlannedStep) -> int:
        return sum(alike.sent_bytes * len(alike.tasks) for alike in step.traffic)

    measured = planned(None, {"table": 50.0})
    assert sent_bytes(measured) == sent_bytes(planned(n_rows / n_examples, {}))
    assert sent_bytes(measured) < measured.plan.payload_bytes_per_step == sent_bytes(planned(None, {}))
    assert sent_bytes(planned(1.0, {"table": 50.0})) == sent_bytes(measured)


def test_rows_of_other_examples_are_on_a_line() -> None:
    """Some rows are looked up by each example, others by the step. A trace may not have all tables."""
    rows = {8: {"table": 26.0, "ids": 8.0}, 16: {"table": 42.0}}
    measured = {n: ProfiledStep(profile=replace(profile(examples=n), rows=rows[n])) for n in (8, 16)}
    workload = ProfiledWorkload(name="w", params={}, step=STEP, batch_size=16, measured=measured)
    assert [workload.profile(n).rows["table"] for n in (4, 8, 12, 32)] == pytest.approx([18, 26, 34, 74])
    assert [workload.profile(n).rows["ids"] for n in (4, 12, 32)] == pytest.approx([4, 12, 32])


def test_repeats_are_averaged(tmp_path: Path) -> None:
    run = stored(tmp_path, record(), record(repeat=1, step_s=0.020))
    assert durations(run) == pytest.approx([0.012])


def test_of_as_many_examples_the_most_workers_count(tmp_path: Path) -> None:
    assert durations(stored(tmp_path, record(workers=1, step_s=1.0), record())) == pytest.approx([0.008])


def test_other_precisions_compilers_and_parameters_are_other_steps(tmp_path: Path) -> None:
    others = (
        record(case="a", method=replace(METHOD, precision="bfloat16")),
        record(case="b", method=replace(METHOD, xla=True)),
        record(case="c", workload_params={"units": 3}),
    )
    titles = [workload.title for workload in profiled_workloads(stored(tmp_path, record(), *others))]
    assert titles == ["hand-made", "hand-made bfloat16", "hand-made XLA", "hand-made:units=3"]


def test_other_updates_are_other_steps(tmp_path: Path) -> None:
    slow = record(case="plain", step_s=0.020, strategy_params={"fused_update": False})
    run = stored(
        tmp_path,
        *(record(), slow),
        record("ps", strategy_params={"fused_update": False}),
        record("ps", case="merging", strategy_params={"merge_rows": True}),
    )
    workloads = profiled_workloads(run)
    assert [workload.updates for workload in workloads] == [Updates(), Updates(fused=False)]
    computing_s = [o.planned.profiles[EXAMPLES].step_s for o in observations(run, workloads)]
    assert computing_s == pytest.approx([0.016, 0.008])


def test_batch_sizes_are_one_workload_with_its_requested_batch(tmp_path: Path) -> None:
    small = record(workers=1, case="small", workload_params={"batch_size": EXAMPLES})
    (workload,) = profiled_workloads(stored(tmp_path, small, record()))
    assert (workload.batch_size, workload.usual_batch_size, workload.params) == (2 * EXAMPLES,) * 2 + ({},)
    (workload,) = profiled_workloads(stored(tmp_path, small))
    assert (workload.batch_size, workload.usual_batch_size) == (EXAMPLES, None)
    per_replica = record(method=replace(METHOD, batch_rule="per-replica"))
    (workload,) = profiled_workloads(stored(tmp_path, per_replica))
    assert workload.batch_size == EXAMPLES


def test_faulty_and_failed_cases_have_no_profile(tmp_path: Path) -> None:
    slow = record(method=replace(METHOD, faults=("worker 1: slow",)))
    with pytest.raises(UsageError, match="must have a profile of a step, got none"):
        profiled_workloads(stored(tmp_path, slow, record(status="failed"), record(replicas=2)))


@pytest.mark.parametrize(
    "changes",
    [{"compute_s": 0.0}, {"compute_s": -1.0}, {"update_s": float("nan")}, {"examples": 0}, {"variables": 3}],
)
def test_a_profile_with_times_that_no_step_has_is_damaged(tmp_path: Path, changes: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="must be as it was written") as refusal:
        profiled_workloads(stored(tmp_path, record(), changes=changes))
    assert "\n" not in refusal.value.message


def test_a_run_is_of_one_machine(tmp_path: Path) -> None:
    other = record(case="other", machine=Machine(cpu_model="Another", n_cores=2))
    assert identity_of(stored(tmp_path, record())).cpu_model == "A processor"
    with pytest.raises(UsageError, match="workers of one kind, got cpu model Another instead of A processor"):
        identity_of(stored(tmp_path, record(), other))


def test_only_correct_steps_with_exchanges_are_observed(tmp_path: Path) -> None:
    failed = record("ps", status="failed", error=Failure(type="crash", message="It fell.", stage="steps"))
    late = record("ps", case="late", workers=3, strategy_params={"staleness": 2})
    unplanned = record("ps", case="unplanned", batch_size=1)
    untimed = record("ps", case="untimed")
    others = (failed, late, unplanned, replace(untimed, step_s=StepSeconds(n=0)))
    run = stored(tmp_path, record(), record("all-reduce", step_s=0.015), *others)
    (observed,) = observations(run, profiled_workloads(run))
    assert (observed.family, observed.step_s, observed.cpu_s) == ("tcp", 0.015, (0.012, 0.012))


def test_steps_with_an_unknown_wait_for_cores_are_not_observed(tmp_path: Path) -> None:
    """With several threads, a duration has the wait for other workers' threads."""
    several = {
        "notes": (f"{CORES_SHARED}: 4 cores wanted, 2 available",),
        "method": replace(METHOD, cores_per_worker=2.0),
    }
    run = stored(tmp_path, record(**several), record("all-reduce", step_s=0.015, **several))
    assert list(observations(run, profiled_workloads(run))) == []


def test_on_gpus_a_step_takes_its_duration(tmp_path: Path) -> None:
    """A probe of GPUs has costs of NCCL: its kernels are work of the GPU, not of the host's processor."""
    run = stored(tmp_path, record(device="gpu"), record("all-reduce", device="gpu", step_s=0.015))
    (observed,) = observations(run, profiled_workloads(run))
    assert "nccl" in {flow.transport for flow in observed.planned.flows}
    assert observed.cpu_s == (0.015, 0.015)


def test_a_probe_is_fitted_to_what_was_measured(tmp_path: Path) -> None:
    steps = [record("all-reduce", case=f"step {n}", step_s=0.012 + n * 1e-4) for n in range(4)]
    probe = probe_of(stored(tmp_path, record(), *steps))
    assert (probe.n_steps, probe.most_workers, set(probe.costs.collectives)) == (4, 2, {"tcp"})


def test_a_probe_with_few_good_cases_is_refused_with_the_reason(tmp_path: Path) -> None:
    failed = [
        record(
            "ps", case=f"step {n}", status="failed", error=Failure(type="x", message="It fell.", stage="s")
        )
        for n in range(3)
    ]
    with pytest.raises(UsageError, match="got 1 steps, and 3 of 5 cases failed; the first of them: It fell"):
        probe_of(stored(tmp_path, record(), record("all-reduce"), *failed))
