"""Share of the workers' cores that others used, from known counters."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from harness.measure.machine_use import CoreUse, Readings, consumption, core_use, stability
from harness.records.costs import Energy
from harness.records.outcome import Stability, drift, grade_of
from harness.worker.counters.cores import CoreReading, EnergyReading, Package, read_cores

START = CoreReading(
    kernel="k",
    cores=(0,),
    at_s=10.0,
    busy_s=100.0,
    stolen_s=1.0,
    own_s=50.0,
    throttled_s=0.0,
    n_hot=3,
    control_group="g",
    energy=EnergyReading(missing="no counter"),
)

TICKS_S = 0.05  # by which counters in ticks may differ


def window(start: CoreReading = START, **grown: float) -> Readings:
    return start, replace(start, **{name: getattr(start, name) + value for name, value in grown.items()})


def test_what_others_used_is_what_the_cores_did_less_what_the_worker_did() -> None:
    first = window(at_s=2.0, busy_s=1.5, own_s=1.0, stolen_s=0.2, throttled_s=0.1, n_hot=1)
    second = window(replace(START, cores=(1,)), at_s=2.0, busy_s=2.0, own_s=2.0)
    use = core_use([first, second])
    assert use == CoreUse(
        core_s=4.0,
        foreign_s=0.5,
        stolen_s=pytest.approx(0.2),
        throttled_s=pytest.approx(0.1),
        n_hot=1,
        own_s=(1.0, 2.0),
        why_no_package="no counter",
    )


def test_workers_on_the_same_cores_are_no_strangers_to_each_other() -> None:
    shared = replace(START, cores=(0, 1))
    use = core_use([window(shared, at_s=2.0, busy_s=3.0, own_s=own_s) for own_s in (1.0, 1.5)])
    assert use is not None
    assert use.foreign_s == pytest.approx(0.5)
    assert use.core_s == pytest.approx(4.0)


def test_what_a_control_group_withheld_counts_once_for_all_workers_in_it() -> None:
    cores = [replace(START, cores=(core,)) for core in range(3)]
    apart = [*cores[:2], replace(cores[2], control_group="another")]
    use = core_use([window(counters, at_s=1.0, throttled_s=0.02) for counters in apart])
    assert use is not None
    assert use.throttled_s == pytest.approx(0.04)


def test_ticks_that_fall_before_their_window_make_no_negative_use() -> None:
    use = core_use([window(at_s=1.0, busy_s=0.9, own_s=1.0)])
    assert use is not None
    assert use.foreign_s == pytest.approx(-0.1)
    assert stability([use, use], [1.0, 1.0]).foreign_cpu == 0.0


def with_energy(start: CoreReading, joules: float) -> CoreReading:
    package = Package(name="package-0", joules=joules, wraps_at_j=100.0)
    return replace(start, energy=EnergyReading(packages=(package,)))


def test_energy_of_a_host_counts_once_and_a_counter_may_begin_anew() -> None:
    one, other = START, replace(START, kernel="another")
    use = core_use(
        [
            (with_energy(one, 95.0), with_energy(one, 5.0)),
            (with_energy(one, 95.5), with_energy(one, 5.0)),
            (with_energy(other, 1.0), with_energy(other, 3.0)),
        ]
    )
    assert use is not None
    assert use.package_j == pytest.approx(12.0)
    assert use.why_no_package is None


def test_energy_of_all_hosts_or_of_none() -> None:
    use = core_use([(with_energy(START, 1.0), with_energy(START, 2.0)), window(replace(START, kernel="x"))])
    assert use is not None
    assert (use.package_j, use.why_no_package) == (None, "no counter")


def test_what_windows_took_is_spread_over_all_of_their_steps() -> None:
    use = core_use([window(own_s=1.0), window(replace(START, cores=(1,)), own_s=3.0)])
    consumed = consumption([use, use], 20)
    assert consumed.cpu_s_per_step == pytest.approx((0.1, 0.3))
    assert consumed.energy == Energy(why_no_package="no counter")
    powered = core_use([(with_energy(START, 0.0), with_energy(START, 8.0))])
    assert consumption([powered, powered], 4).energy == Energy(package_j_per_step=4.0)
    unseen = consumption([use, None], 20)
    assert unseen.cpu_s_per_step is None
    assert unseen.energy.why_no_package


def test_without_a_reading_nothing_is_said() -> None:
    assert core_use([window(at_s=1.0), None]) is None
    assert core_use([]) is None
    assert stability([None], [1.0]) == Stability()


def test_shares_are_of_all_windows_and_the_worst_one_is_kept() -> None:
    uses = [
        CoreUse(core_s=2.0, foreign_s=foreign_s, stolen_s=0.0, throttled_s=None, n_hot=None)
        for foreign_s in (0.0, 0.0, 1.0)
    ]
    grades = stability(uses, [1.0, 1.0, 1.0])
    assert grades.foreign_cpu == pytest.approx(1 / 6)
    assert grades.foreign_cpu_most == pytest.approx(0.5)
    assert (grades.throttled_cpu, grades.n_hot, grades.drift) == (None, None, None)
    assert grades.grade == "unsteady"


@pytest.mark.parametrize(
    ("result", "grade"),
    [
        (Stability(foreign_cpu=0.01, drift=-0.05), "steady"),
        (Stability(foreign_cpu=0.06), "unsteady"),
        (Stability(drift=-0.2), "unsteady"),
        (Stability(stolen_cpu=0.3), "disturbed"),
        (Stability(throttled_cpu=0.3), "disturbed"),
        (Stability(drift=0.5), "disturbed"),
        (Stability(n_hot=1), "disturbed"),
    ],
)
def test_the_worst_of_all_decides_the_grade(result: Stability, grade: str) -> None:
    assert grade_of(result) == grade


def test_drift_compares_the_last_rounds_with_the_first() -> None:
    assert drift([1.0, 1.0, 9.0, 2.0, 2.0, 2.0]) == pytest.approx(1.0)
    assert drift([1.0, 2.0]) is None


def test_another_program_on_the_core_is_seen_and_this_process_is_not() -> None:
    allowed = os.sched_getaffinity(0)
    core = min(allowed)
    pid = os.fork()
    if pid == 0:
        os.sched_setaffinity(0, {core})
        while True:
            pass
    try:
        os.sched_setaffinity(0, {core})
        before, others_s = read_cores(), processor_s(pid)
        # However busy the machine is, both get their turns.
        while (used_s := processor_s(pid) - others_s) < 0.5 or time.process_time() - _own_s(before) < 0.2:
            pass
        after = read_cores()
    finally:
        os.sched_setaffinity(0, allowed)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert before is not None
    assert after is not None
    use = core_use([(before, after)])
    assert use is not None
    assert before.cores == (core,)
    assert use.foreign_s >= used_s - TICKS_S
    assert use.foreign_s <= use.core_s - (after.own_s - before.own_s) + TICKS_S


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _own_s(reading: CoreReading | None) -> float:
    assert reading is not None
    return reading.own_s
