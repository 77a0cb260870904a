""" """

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from fake_processes import FakeProcesses
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import CaseError
from harness.measure.collector import MAX_LOSSES, Collector, Measurement, observer_effect, tcp_fields
from harness.measure.windows import WarmUp, spread_indices
from harness.records.conditions import GpuFacts
from harness.records.costs import ObserverEffect
from harness.records.steps_file import Steps
from harness.worker.counters.network import Interface, TcpConnection
from harness.worker.counters.read import Counters, read_counters
from harness.worker.jobs.training import TimedSteps, peak_rss_bytes, run_steps, settle, unobserved_steps
from harness.worker.session.timed_loop import StepTimes, in_turn, seconds_unobserved


class Workers(FakeProcesses):
    """Workers whose steps take told times, and which send each other 1000 bytes in each step."""

    def __init__(
        self, step_s: Sequence[float], weights: Sequence[tuple[float, ...]], *, counters: bool = True
    ) -> None:
        super().__init__(["127.0.0.1", "127.0.0.1"])
        self.calls: list[tuple[str, int]] = []
        self.machines: tuple[str | None, ...] = (None, None)
        self.gpus: tuple[tuple[GpuFacts, ...] | None, ...] = (None, None)
        self._step_s = np.asarray(step_s)
        self._weights = weights
        self._counters = counters
        self._n_done = 0

    def answer(self, job: Any, per_worker_args: Sequence[Any], stage: str) -> list[Any]:
        if job is run_steps:
            ((n_steps, first), _) = per_worker_args
            assert first == self._n_done
            self._n_done += n_steps
            self.calls.append(("run_steps", n_steps))
            return [self._timed(worker, self._n_done - n_steps, n_steps) for worker in range(2)]
        self.calls.append((job.__name__, 0))
        if job is read_counters:
            return [self._counted(worker, address) for worker, (address,) in enumerate(per_worker_args)]
        if job is settle:
            return [None, None]
        assert job is peak_rss_bytes
        return [1000, None]

    def _timed(self, worker: int, first: int, n_steps: int) -> TimedSteps:
        taken_s = self._step_s[np.minimum(np.arange(first, first + n_steps), len(self._step_s) - 1)] * (
            worker + 1
        )
        stamps = np.concatenate([[0.0], np.cumsum(taken_s)]) + 1000.0 * worker
        weights = self._weights[worker]
        losses = np.tile(np.arange(len(weights)) + 10.0 * worker, (n_steps, 1)) + 1.0
        return TimedSteps(
            times=StepTimes(start_s=stamps[:-1], end_s=stamps[1:], losses=losses), weights=weights
        )

    def _counted(self, worker: int, address: object) -> Counters:
        tcp = self._reading(worker) if self._counters or worker == 0 else None
        interface = Interface(kernel="k", namespace="n", index=1, sent_bytes=2100 * self._n_done)
        output = interface if address == "127.0.0.1" else None
        return Counters(
            machine=self.machines[worker],
            tcp=tcp,
            interface=output,
            gpus=self.gpus[worker],
            lock=f"lock-{worker}",
        )

    def _reading(self, worker: int) -> tuple[TcpConnection, ...]:
        ends = [("127.0.0.1", 1), ("127.0.0.1", 2)]
        sent = 1000 * self._n_done
        return (
            TcpConnection(
                inode=worker,
                local=ends[worker],
                remote=ends[1 - worker],
                acked_bytes=sent,
                retransmitted_bytes=0,
            ),
        )


def measured_by(
    processes: Workers,
    *,
    n_steps: int,
    warmup: WarmUp,
    batch_size: int = 8,
    n_lead: int = 1,
    n_windows: int = 1,
    isolated: bool = False,
) -> Measurement:
    collector = Collector(processes, batch_size=batch_size, isolated=isolated)
    collector.warm_up(warmup)
    for _ in range(n_windows):
        collector.window(n_steps, n_lead=n_lead)
    return collector.measurement()


def test_windows_count_without_the_steps_that_lead_into_them() -> None:
    processes = Workers([0.1], [(0.5,), (0.5,)])
    measured = measured_by(processes, n_steps=20, warmup=5, batch_size=32, n_lead=2, n_windows=3)
    assert [call for call in processes.calls if call[0] == "run_steps"] == [
        ("run_steps", 1),
        ("run_steps", 4),
        *[("run_steps", 22)] * 3,
    ]
    assert (measured.warmup_steps, measured.n_steps, measured.step_s.n) == (5, 66, 60)
    assert measured.examples_per_s == pytest.approx(32 / 0.2)  # the second worker takes twice as long
    assert measured.tcp is not None
    assert measured.tcp.matrix == ((0.0, 1000.0), (1000.0, 0.0))
    assert measured.peak_rss_bytes == (1000, None)


@pytest.mark.parametrize(
    ("machines", "hosts"),
    [(("a", "a"), (0, 0)), (("b", "a"), (0, 1)), ((None, "a"), None)],
)
def test_workers_of_one_machine_have_one_number(
    machines: tuple[str | None, ...], hosts: tuple[int, ...] | None
) -> None:
    processes = Workers([0.1], [(1.0,), ()])
    processes.machines = machines
    assert measured_by(processes, n_steps=2, warmup=0).hosts == hosts


def test_a_window_tells_the_median_of_its_counted_steps() -> None:
    collector = Collector(Workers([9.0, 0.1, 0.2, 0.3, 0.7], [(1.0,), ()]), batch_size=1)
    collector.warm_up(0)
    assert collector.window(3, n_lead=1) == pytest.approx(0.2)
    assert collector.window(3, n_lead=1) == pytest.approx(0.7)


def test_where_steps_differ_a_window_tells_the_median_of_whole_periods() -> None:
    collector = Collector(Workers([0.1, 0.1, 0.1, 0.9] * 4, [(1.0,), ()]), batch_size=1, period=4)
    collector.warm_up(0)
    assert collector.window(8, n_lead=4) == pytest.approx(0.3)
    steps = collector.measurement().step_s
    assert (steps.n, steps.p50, steps.p99) == (8, pytest.approx(0.3), pytest.approx(0.3))


@pytest.mark.parametrize(("warmup", "expected"), [(0, 1), (1, 1), (5, 5), (6, 9), (8, 9)])
def test_windows_begin_after_a_step_that_averages_variables(warmup: int, expected: int) -> None:
    """Such a step, the first of each period, waits for what workers lost in the steps before it."""
    collector = Collector(Workers([0.1], [(1.0,), ()]), batch_size=1, period=4, averaging_period=4)
    collector.warm_up(warmup)
    collector.window(4, n_lead=4)
    assert collector.measurement().warmup_steps == expected


def test_workers_that_do_not_wait_for_each_other_are_timed_by_windows() -> None:
    processes = Workers([0.1, 0.1, 0.4], [(0.5,), (0.5,)])  # the second takes twice as long
    collector = Collector(processes, batch_size=8, whole_windows=True)
    collector.warm_up(0)
    assert collector.window(3, n_lead=0) == pytest.approx(0.4)
    assert collector.window(3, n_lead=0) == pytest.approx(0.8)
    steps = collector.measurement().step_s
    assert (steps.n, steps.mean, steps.p50) == (6, pytest.approx(0.6), pytest.approx(0.6))
    assert (steps.p90, steps.p99) == (None, None)


def test_steps_that_average_variables_are_waited_for() -> None:
    class Late(Workers):
        def call(
            self, job: Any, per_worker_args: Sequence[Any], *, timeout_s: float, stage: str = "run"
        ) -> list[Any]:
            answers = super().call(job, per_worker_args, timeout_s=timeout_s, stage=stage)
            if job is run_steps:
                taken_s = max(answer.times.end_s[-1] - answer.times.start_s[0] for answer in answers)
                assert taken_s < timeout_s
            return answers

    processes = Late(([0.1] * 7 + [60.0]) * 8, [(0.5,), (0.5,)])
    collector = Collector(processes, batch_size=1, period=8, averaging_period=8)
    collector.warm_up(5)
    for _ in range(2):
        collector.window(8, n_lead=8)


def test_a_discarded_window_enters_no_figure() -> None:
    processes = Workers([0.1] * 5 + [0.7] * 5 + [0.1] * 5, [(1.0,), ()])
    collector = Collector(processes, batch_size=1)
    collector.warm_up(0)
    for _ in range(2):
        collector.window(4, n_lead=1)
    collector.discard(1)
    collector.window(4, n_lead=1)
    measured = collector.measurement()
    assert (measured.step_s.n, measured.step_s.p99, measured.n_steps) == (8, pytest.approx(0.1), 15)
    assert set(measured.steps.window) == {-1, 0, 1}
    assert measured.steps.warmup[5:10].all()


def test_steps_of_all_may_be_told_by_one_worker() -> None:
    processes = Workers([0.1], [(1.0,), ()])
    measured = measured_by(processes, n_steps=20, warmup=1, batch_size=32)
    assert measured.examples_per_s == pytest.approx(32 / 0.1)  # what the second says of times is not asked
    assert set(measured.steps.worker) == {0}
    assert set(measured.loss) == {1.0}
    assert measured.peak_rss_bytes == (1000, None)


def test_no_warm_up_at_all() -> None:
    processes = Workers([0.1], [(0.5,), (0.5,)])
    measured = measured_by(processes, n_steps=3, warmup=0, n_lead=0)
    assert measured.warmup_steps == 0
    assert not measured.steps.warmup.any()


def test_updates_beside_the_steps_end_before_others_have_the_cores() -> None:
    processes = Workers([0.1], [(0.5,), (0.5,)])
    collector = Collector(processes, batch_size=8, settles=True)
    collector.warm_up(3)
    collector.window(4, n_lead=1)
    names = [name for name, _ in processes.calls]
    assert names == ["run_steps", "run_steps", "settle", "read_counters", "run_steps", "settle"]


def test_automatic_warm_up_goes_on_until_the_times_settle() -> None:
    slow = [1.0 - 0.04 * step for step in range(20)]
    processes = Workers([*slow, 0.1], [(0.5,), (0.5,)])
    measured = measured_by(processes, n_steps=10, warmup="auto")
    assert measured.settled
    assert 30 <= measured.warmup_steps <= 50
    assert measured.step_s.p99 == pytest.approx(0.2)


def test_a_warm_up_that_never_ends_is_flagged() -> None:
    processes = Workers(list(np.linspace(5.0, 1.0, 200)), [(0.5,), (0.5,)])
    measured = measured_by(processes, n_steps=10, warmup="auto")
    assert not measured.settled
    assert measured.warmup_steps == 50


def test_all_steps_are_kept_and_those_that_do_not_count_are_marked() -> None:
    processes = Workers([0.1], [(1.0,), (1.0,)])
    steps = measured_by(processes, n_steps=2, warmup=2, n_windows=2).steps
    assert steps.worker.tolist() == [0] * 8 + [1] * 8
    assert steps.step.tolist() == [*range(8), *range(8)]
    assert steps.warmup.tolist() == [True, True, True, False, False, True, False, False] * 2
    assert steps.window.tolist() == [-1, -1, 0, 0, 0, 1, 1, 1] * 2


def test_losses_are_weighted_by_examples_with_unequal_replicas() -> None:
    # Worker 0: two replicas with losses 1 and 2; worker 1: one with loss 11.
    processes = Workers([0.1], [(0.25, 0.25), (0.5,)])
    measured = measured_by(processes, n_steps=3, warmup=1)
    assert measured.loss == pytest.approx([0.25 * 1 + 0.25 * 2 + 0.5 * 11] * 4)
    assert measured.steps.loss[0] == pytest.approx(1.5)
    assert measured.steps.loss[-1] == pytest.approx(11.0)


def test_losses_that_are_sums_add_up() -> None:
    processes = Workers([0.1], [(1.0, 1.0), (1.0,)])
    measured = measured_by(processes, n_steps=3, warmup=1)
    assert measured.loss == pytest.approx([1 + 2 + 11] * 4)


def test_unreadable_counters_are_none() -> None:
    processes = Workers([0.1], [(0.5,), (0.5,)], counters=False)
    measured = measured_by(processes, n_steps=3, warmup=1)
    assert tcp_fields(measured.tcp) == (None, None)


def test_what_interfaces_send_is_read_where_nobody_else_sends_through_them() -> None:
    def bytes_per_step(*, isolated: bool) -> float | None:
        processes = Workers([0.1], [(0.5,), (0.5,)])
        measured = measured_by(processes, n_steps=3, warmup=1, isolated=isolated)
        return measured.interface_bytes_per_step

    assert bytes_per_step(isolated=True) == 2100  # the two share it
    assert bytes_per_step(isolated=False) is None


@given(st.integers(1, 10_000))
def test_spread_indices_include_both_ends(n: int) -> None:
    indices = spread_indices(n, MAX_LOSSES).tolist()
    assert indices[0] == 0
    assert indices[-1] == n - 1
    assert len(indices) == min(n, MAX_LOSSES)
    assert indices == sorted(set(indices))


def test_kinds_of_gpus_are_those_of_all_workers_each_once() -> None:
    kinds = [GpuFacts(model=name) for name in ("H100", "H200")]
    processes = Workers([0.1], [(0.5,), (0.5,)])
    assert measured_by(processes, n_steps=2, warmup=1).gpus is None
    processes = Workers([0.1], [(0.5,), (0.5,)])
    processes.gpus = (kinds[0],), (kinds[0], kinds[1])
    measured = measured_by(processes, n_steps=2, warmup=1)
    assert (measured.gpus, measured.lock) == (tuple(kinds), "lock-0")


N_DONE, N_STEPS, N_LEAD = 7, 4, 2


class Processes(FakeProcesses):
    """Two workers with steps of 2 s and 3 s; a step that leads takes ten times as long."""

    def __init__(self) -> None:
        super().__init__(["127.0.0.1"] * 2)
        self.asked: list[tuple[Any, int]] = []

    def answer(self, job, per_worker_args, stage):
        assert stage == "collect"
        self.asked.append((job, per_worker_args[0][-1]))
        return [step_s + 0.5 if job is unobserved_steps else timed(step_s) for step_s in (2.0, 3.0)]


def timed(step_s: float) -> TimedSteps:
    lengths = np.array([10 * step_s] * N_LEAD + [step_s] * N_STEPS)
    end_s = np.cumsum(lengths)
    times = StepTimes(start_s=end_s - lengths, end_s=end_s, losses=np.zeros((len(lengths), 1)))
    return TimedSteps(times=times, weights=(1.0,))


def steps() -> Steps:
    numbers = np.arange(N_DONE, dtype=np.int32)
    start_s = numbers.astype(float)
    return Steps(
        worker=numbers * 0,
        step=numbers,
        start_s=start_s,
        end_s=start_s + 1,
        loss=start_s,
        warmup=numbers < 0,
        window=numbers,
    )


def effect_of(processes: FakeProcesses, n_pairs: int = 3) -> ObserverEffect:
    return observer_effect(processes, steps(), n_pairs=n_pairs, window_shape=(N_STEPS, N_LEAD))


def test_each_kind_of_window_is_first_in_every_other_pair_and_steps_go_on() -> None:
    processes = Processes()
    effect_of(processes)
    kinds = [run_steps, unobserved_steps, unobserved_steps, run_steps, run_steps, unobserved_steps]
    assert [job for job, _ in processes.asked] == kinds
    assert [first for _, first in processes.asked] == [N_DONE + 6 * k for k in range(6)]


def test_the_mean_step_of_the_slowest_worker_is_kept_without_those_that_lead() -> None:
    effect = effect_of(Processes())
    assert effect.with_s == pytest.approx((3.0,) * 3)
    assert effect.without_s == (3.5,) * 3


def test_what_fails_here_costs_no_result() -> None:
    class Failing(Processes):
        def answer(self, job, per_worker_args, stage):
            if job is unobserved_steps:
                raise CaseError("worker-died", "worker 1 is gone; continue with --resume", stage="collect")
            return super().answer(job, per_worker_args, stage)

    assert effect_of(Failing()) == ObserverEffect(why_none="a window failed: worker 1 is gone", failed=True)


def test_an_unobserved_loop_makes_all_steps_and_times_those_after_the_lead(monkeypatch) -> None:
    clock = iter([10.0, 16.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    fed: list[int] = []
    feeds = [[np.array(k)] for k in range(4)]
    seconds = seconds_unobserved(
        lambda batch: fed.append(int(batch[0])), in_turn(feeds, 3), n_steps=3, n_lead=2
    )
    assert fed == [3, 0, 1, 2, 3]
    assert seconds == pytest.approx(2.0)
