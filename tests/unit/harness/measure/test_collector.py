from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from fake_processes import FakeProcesses
from hypothesis import given
from hypothesis import strategies as st

from harness.measure.collector import MAX_LOSSES, measure, spread_indices, tcp_fields
from harness.worker.counters.interface import Interface
from harness.worker.counters.read import Counters, read_counters
from harness.worker.counters.tcp import TcpConnection
from harness.worker.jobs.training import TimedSteps, peak_rss_bytes, run_steps
from harness.worker.session.timed_loop import StepTimes


class Workers(FakeProcesses):
    """Workers whose steps take told times, and which send each other 1000 bytes in each step."""

    def __init__(
        self, step_s: Sequence[float], weights: Sequence[tuple[float, ...]], *, counters: bool = True
    ) -> None:
        super().__init__(["127.0.0.1", "127.0.0.1"])
        self.calls: list[tuple[str, int]] = []
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
        return Counters(tcp=tcp, interface=interface if address == "127.0.0.1" else None)

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


def test_fixed_warm_up_counts_the_step_that_runs_with_the_window() -> None:
    processes = Workers([0.1], [(0.5,), (0.5,)])
    measured = measure(processes, n_steps=20, warmup=5, batch_size=32)
    assert [call for call in processes.calls if call[0] == "run_steps"] == [
        ("run_steps", 1),
        ("run_steps", 3),
        ("run_steps", 21),
    ]
    assert measured.warmup_steps == 5
    assert measured.step_s.n == 20
    assert measured.examples_per_s == pytest.approx(32 / 0.2)  # the second worker takes twice as long
    assert measured.tcp is not None
    assert measured.tcp.matrix == ((0.0, 1000.0), (1000.0, 0.0))
    assert measured.peak_rss_bytes == (1000, None)


def test_steps_of_all_may_be_told_by_one_worker() -> None:
    processes = Workers([0.1], [(1.0,), ()])
    measured = measure(processes, n_steps=20, warmup=1, batch_size=32)
    assert measured.examples_per_s == pytest.approx(32 / 0.1)  # what the second says of times is not asked
    assert set(measured.steps.worker) == {0}
    assert set(measured.loss) == {1.0}
    assert measured.peak_rss_bytes == (1000, None)


def test_no_warm_up_at_all() -> None:
    processes = Workers([0.1], [(0.5,), (0.5,)])
    measured = measure(processes, n_steps=3, warmup=0, batch_size=32)
    assert measured.warmup_steps == 0
    assert not measured.steps.warmup.any()


@pytest.mark.parametrize(
    ("warmup", "runs", "warmup_steps"),
    [(0, [24], 4), (1, [24], 4), (3, [24], 4), (7, [1, 2, 24], 7)],
)
def test_bytes_are_counted_over_whole_periods(warmup: int, runs: list[int], warmup_steps: int) -> None:
    processes = Workers([0.1], [(0.5,), (0.5,)])
    measured = measure(processes, n_steps=20, warmup=warmup, batch_size=32, period=8)
    assert [n for name, n in processes.calls if name == "run_steps"] == runs
    assert (measured.warmup_steps, measured.step_s.n) == (warmup_steps, 20)
    assert measured.tcp is not None
    assert measured.tcp.matrix == ((0.0, 1000.0), (1000.0, 0.0))


def test_automatic_warm_up_goes_on_until_the_times_settle() -> None:
    slow = [1.0 - 0.04 * step for step in range(20)]
    processes = Workers([*slow, 0.1], [(0.5,), (0.5,)])
    measured = measure(processes, n_steps=10, warmup="auto", batch_size=32)
    assert measured.settled
    assert 30 < measured.warmup_steps <= 51
    assert measured.step_s.p99 == pytest.approx(0.2)


def test_a_warm_up_that_never_ends_is_flagged() -> None:
    processes = Workers(list(np.linspace(5.0, 1.0, 200)), [(0.5,), (0.5,)])
    measured = measure(processes, n_steps=10, warmup="auto", batch_size=32)
    assert not measured.settled
    assert measured.warmup_steps == 51


def test_all_steps_are_kept_and_warm_up_is_marked() -> None:
    measured = measure(Workers([0.1], [(1.0,), (1.0,)]), n_steps=4, warmup=2, batch_size=8)
    steps = measured.steps
    assert steps.worker.tolist() == [0] * 6 + [1] * 6
    assert steps.step.tolist() == [*range(6), *range(6)]
    assert steps.warmup.tolist() == [True, True, False, False, False, False] * 2


def test_losses_are_weighted_by_examples_with_unequal_replicas() -> None:
    # Worker 0: two replicas with losses 1 and 2; worker 1: one with loss 11.
    processes = Workers([0.1], [(0.25, 0.25), (0.5,)])
    measured = measure(processes, n_steps=3, warmup=1, batch_size=8)
    assert measured.loss == pytest.approx([0.25 * 1 + 0.25 * 2 + 0.5 * 11] * 3)
    assert measured.steps.loss[0] == pytest.approx(1.5)
    assert measured.steps.loss[-1] == pytest.approx(11.0)


def test_losses_that_are_sums_add_up() -> None:
    processes = Workers([0.1], [(1.0, 1.0), (1.0,)])
    measured = measure(processes, n_steps=3, warmup=1, batch_size=8)
    assert measured.loss == pytest.approx([1 + 2 + 11] * 3)


def test_unreadable_counters_are_none() -> None:
    processes = Workers([0.1], [(0.5,), (0.5,)], counters=False)
    measured = measure(processes, n_steps=3, warmup=1, batch_size=8)
    assert tcp_fields(measured.tcp) == (None, None)


def test_what_interfaces_send_is_read_where_nobody_else_sends_through_them() -> None:
    def bytes_per_step(*, isolated: bool) -> float | None:
        processes = Workers([0.1], [(0.5,), (0.5,)])
        measured = measure(processes, n_steps=3, warmup=1, batch_size=8, isolated=isolated)
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
