from collections.abc import Callable, Sequence
from typing import Any

import pytest
from fake_processes import FakeProcesses

from harness.cluster import Limits, ShapeLink, WorkerLink
from harness.errors import CaseError
from harness.measure.link import link_of_record, measured_links
from harness.measure.timeouts import USUAL, Timeouts
from harness.worker.jobs import link_rate

Rate = Callable[[int, int], float]


class Workers(FakeProcesses):
    """Workers whose links carry what a function of sender and receiver says."""

    def __init__(self, n_workers: int, rate: Rate) -> None:
        super().__init__([f"10.0.0.{worker}" for worker in range(n_workers)])
        self.rounds: list[list[tuple[int, int]]] = []
        self._rate = rate
        self.is_closed = False
        self.timeouts_s: list[float] = []

    def call(
        self, job: Any, per_worker_args: Sequence[Any], *, timeout_s: float, stage: str = "run"
    ) -> list[Any]:
        self.timeouts_s.append(timeout_s)
        return super().call(job, per_worker_args, timeout_s=timeout_s, stage=stage)

    def answer(self, job: Any, per_worker_args: Sequence[Any], stage: str) -> list[Any]:
        if job is link_rate.await_sender:
            return [(host, 1000 + worker) for worker, (host,) in enumerate(per_worker_args)]
        if job is link_rate.await_no_more:
            self.is_closed = True
            return [None] * len(self.pids)
        assert job is link_rate.transfer
        assert not self.is_closed
        pairs = []
        rates: list[float | None] = [None] * len(self.pids)
        for sender, (place, _) in enumerate(per_worker_args):
            if place is not None:
                receiver = place[1] - 1000
                assert per_worker_args[receiver][0] is None
                assert per_worker_args[receiver][1] is not None
                pairs.append((sender, receiver))
                rates[receiver] = self._rate(sender, receiver)
        self.rounds.append(pairs)
        return rates


def limits(
    n_workers: int, different: dict[int, float | None] | None = None, *, mbit: float | None = 100.0
) -> Limits:
    links = tuple((worker, WorkerLink(rate_mbit=rate)) for worker, rate in (different or {}).items())
    return ShapeLink(rate_mbit=mbit, workers=links).limits(n_workers)


@pytest.mark.parametrize("n_workers", [2, 3, 4, 5])
def test_every_worker_sends_once_and_receives_once_never_both_at_a_time(n_workers: int) -> None:
    processes = Workers(n_workers, lambda sender, receiver: 95.0 + sender)
    links = measured_links(processes, limits(n_workers))
    assert processes.is_closed
    assert links is not None
    assert [link.sent_mbit for link in links] == [95.0 + worker for worker in range(n_workers)]
    assert [link.received_mbit for link in links] == [95.0 + (w - 1) % n_workers for w in range(n_workers)]
    for pairs in processes.rounds:
        of_round = [worker for pair in pairs for worker in pair]
        assert len(set(of_round)) == len(of_round)


def test_a_rate_is_held_to_the_slower_of_both_links() -> None:
    slow = Workers(3, lambda sender, receiver: 9.6 if 1 in (sender, receiver) else 96.0)
    links = measured_links(slow, limits(3, {1: 10.0}))
    assert links is not None
    assert [(link.requested_mbit, link.sent_mbit, link.received_mbit) for link in links] == [
        (100.0, 9.6, 96.0),
        (10.0, 9.6, 9.6),
        (100.0, 96.0, 9.6),
    ]
    record = link_of_record(100.0, links)
    assert (record.requested_mbit, record.measured_mbit, record.workers) == (100.0, 9.6, links)


@pytest.mark.parametrize("measured", [85.0, 115.0])
def test_a_rate_that_is_off_fails_the_case_with_both_figures(measured: float) -> None:
    processes = Workers(2, lambda sender, receiver: 95.0 if sender == 0 else measured)
    with pytest.raises(CaseError) as caught:
        measured_links(processes, limits(2))
    assert caught.value.kind == "link-off-rate"
    assert "from worker 1 to worker 0 must carry 100 Mbit/s within 10%" in str(caught.value)
    assert f"got {measured:g}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_whoever_waits_longer_waits_longer_for_links_too() -> None:
    def waited(timeouts: Timeouts) -> list[float]:
        workers = Workers(2, lambda sender, receiver: 95.0)
        measured_links(workers, limits(2), timeouts)
        return workers.timeouts_s

    usual, longer = waited(USUAL), waited(Timeouts(factor=4.0))
    assert longer == pytest.approx([limit_s + 3 * USUAL.link_s for limit_s in usual])


def test_one_bad_moment_does_not_fail_a_case() -> None:
    rates = iter([40.0, 95.0, 95.0])
    links = measured_links(Workers(2, lambda sender, receiver: next(rates)), limits(2))
    assert links is not None
    assert {link.sent_mbit for link in links} == {95.0}


def test_what_has_no_limit_is_not_measured() -> None:
    def nothing(sender: int, receiver: int) -> float:
        raise AssertionError

    assert measured_links(Workers(2, nothing), limits(2, mbit=None)) is None
    assert measured_links(Workers(1, nothing), limits(1)) is None
    assert link_of_record(None, None).measured_mbit is None

    one = Workers(3, lambda sender, receiver: 10.0)
    links = measured_links(one, limits(3, {0: 10.0}, mbit=None))
    assert links is not None
    assert [(link.sent_mbit, link.received_mbit) for link in links] == [
        (10.0, 10.0),
        (None, 10.0),
        (10.0, None),
    ]
