"""Speed of the machines of a run, from steps whose costs are known, and from stored runs."""

from dataclasses import replace
from pathlib import Path

import pytest
from planned_steps import STRATEGIES
from test_fit import TRUE, observed
from test_observations import METHOD, record, stored

from harness.prediction.observations import profiled_workloads
from harness.prediction.probe import Probe, probe_of
from harness.prediction.run_speed import RunSpeed, slowdown, speed_of
from harness.records.conditions import Machine
from harness.records.outcome import StepSeconds
from harness.records.record import CORES_SHARED, Record

STEPS = [record("all-reduce", case=f"step {n}", step_s=0.012 + n * 1e-4) for n in range(4)]
SLOW = StepSeconds(n=9, mean=0.018, p50=0.018)


@pytest.fixture
def probe(tmp_path: Path) -> Probe:
    return probe_of(stored(tmp_path, record(), *STEPS))


def speed(folder: Path, probe: Probe, *records: Record) -> RunSpeed:
    run = stored(folder, record(), *records)
    return speed_of(run, profiled_workloads(run), probe)


@pytest.mark.parametrize("factor", [0.8, 1.0, 1.5])
def test_the_speed_of_other_hours_shows_in_measured_steps(factor: float) -> None:
    measured = [observed(strategy) for strategy in STRATEGIES]
    costs = TRUE.scaled(1 / factor)
    assert costs.exchange_variation == TRUE.exchange_variation
    assert slowdown(measured, costs) == pytest.approx(factor, rel=0.02)


def test_a_single_step_changes_the_speed_less() -> None:
    assert 1.0 < slowdown([observed("ps")], TRUE.scaled(1 / 1.5)) < 1.45


def test_costs_follow_the_speed_of_a_run(tmp_path: Path, probe: Probe) -> None:
    slow = speed(tmp_path, probe, *(replace(step, step_s=SLOW) for step in STEPS))
    assert (slow.n_cases, slow.slowdown > 1.3) == (4, True)
    changed, known = slow.of(probe).costs.flat(), probe.costs.flat()
    assert changed["tcp.message_s"] == pytest.approx(slow.slowdown * known["tcp.message_s"])
    run = stored(tmp_path)
    factor = f"{slow.slowdown:.2f} times the probe's"
    assert slow.note(run) == f"costs of exchanges are {factor}, fitted to 4 measured cases of {tmp_path}"


def test_repeats_of_a_case_count_once(tmp_path: Path, probe: Probe) -> None:
    case = replace(STEPS[0], step_s=SLOW)
    once = speed(tmp_path, probe, case)
    repeated = speed(tmp_path, probe, *(replace(case, repeat=n) for n in range(10)))
    assert (repeated.n_cases, repeated.slowdown) == (1, pytest.approx(once.slowdown))


def test_many_cases_are_thinned_out(tmp_path: Path, probe: Probe) -> None:
    assert speed(tmp_path, probe, *(replace(STEPS[0], case=str(n)) for n in range(50))).n_cases == 17


@pytest.mark.parametrize(
    "changes",
    [
        {"notes": (f"{CORES_SHARED}: 2 cores wanted, 1 available",)},
        {"strategy_params": {"transport": "ring"}},
        {"machine": Machine(cpu_model="Another", n_cores=2)},
        {"replicas": 2},
        {"status": "failed"},
        {"method": replace(METHOD, faults=("worker 1: slow",))},
        {"strategy": "none"},
    ],
)
def test_steps_under_other_conditions_do_not_show_the_speed(
    tmp_path: Path, probe: Probe, changes: dict[str, object]
) -> None:
    nothing = speed(tmp_path, probe, replace(STEPS[0], case="other", step_s=SLOW, **changes))
    assert nothing == RunSpeed()
    assert (nothing.of(probe), nothing.note(stored(tmp_path))) == (probe, None)
