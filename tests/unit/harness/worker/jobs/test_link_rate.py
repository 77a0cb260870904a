from concurrent.futures import ThreadPoolExecutor

import pytest

from harness.errors import CaseError
from harness.worker.jobs import link_rate
from harness.worker.process.job import JobState

HOST = "127.0.0.1"


def test_what_one_sends_the_other_measures_and_both_end() -> None:
    receiver = JobState()
    place = link_rate.await_sender(receiver, HOST)
    with ThreadPoolExecutor(1) as pool:
        for _ in range(2):
            sent = pool.submit(link_rate.transfer, JobState(), place, None)
            rate = link_rate.transfer(receiver, None, (1_000_000, 0.05))
            assert rate is not None
            assert rate > 0
            assert sent.result(timeout=60) is None
    link_rate.await_no_more(receiver)
    with pytest.raises(ConnectionRefusedError):
        link_rate.socket.create_connection(place)


def test_who_neither_sends_nor_measures_is_done() -> None:
    assert link_rate.transfer(JobState(), None, None) is None


def test_a_sender_that_does_not_come_or_leaves_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = JobState()
    with monkeypatch.context() as patch:
        patch.setattr(link_rate, "_WAIT_S", 0.05)
        link_rate.await_sender(receiver, HOST)
        with pytest.raises(CaseError, match="broke while its rate was measured") as caught:
            link_rate.transfer(receiver, None, (0, 0.1))
    assert caught.value.kind == "unreachable"
    link_rate.await_no_more(receiver)
    place = link_rate.await_sender(receiver, HOST)
    link_rate.socket.create_connection(place).close()
    with pytest.raises(CaseError, match="the sender has left"):
        link_rate.transfer(receiver, None, (1, 0.1))
