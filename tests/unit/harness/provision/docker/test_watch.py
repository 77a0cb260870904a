""" """

import pytest
from waiting import eventually

from harness.provision.docker import watch
from harness.provision.docker.watch import ControlLinks, is_reached
from harness.worker.process.messages import CutOff

WAIT_S = 60.0


def test_a_kernel_that_refuses_is_reached() -> None:
    assert is_reached("127.0.0.1")


def test_who_is_not_reached_again_and_again_is_cut_off_until_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    cut: set[str] = set()
    n_looks = {"a": 0, "b": 0}

    def looked_at(address: str) -> bool:
        n_looks[address] += 1
        return address not in cut

    monkeypatch.setattr(watch, "is_reached", looked_at)
    monkeypatch.setattr(watch, "_PERIOD_S", 0.01)
    links = ControlLinks()
    try:
        links.watch("first", "a")
        links.watch("second", "b")
        eventually(lambda: min(n_looks.values()) > 3, WAIT_S, "both are looked at")
        assert links.failure("first") is None
        cut.add("b")
        eventually(lambda: links.failure("second") is not None, WAIT_S, "the second is cut off")
        failure = links.failure("second")
        assert isinstance(failure, CutOff)
        assert failure.peer is None
        assert links.failure("first") is None
        cut.clear()
        eventually(lambda: links.failure("second") is None, WAIT_S, "the second is back")
        links.forget("second")
        cut.add("b")
        before = n_looks["a"]
        eventually(lambda: n_looks["a"] > before + 5, WAIT_S, "the first is looked at on")
        assert links.failure("second") is None
    finally:
        links.close()


def test_one_miss_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    n_looks = 0

    def every_second(_: str) -> bool:
        nonlocal n_looks
        n_looks += 1
        return n_looks % 2 == 0

    monkeypatch.setattr(watch, "is_reached", every_second)
    monkeypatch.setattr(watch, "_PERIOD_S", 0.001)
    links = ControlLinks()
    seen: list[object] = []

    def looked_often() -> bool:
        seen.append(links.failure("only"))
        return n_looks > 20

    try:
        links.watch("only", "a")
        eventually(looked_often, WAIT_S, "it is looked at often")
    finally:
        links.close()
    assert set(seen) == {None}
