"""Helpers for links, and the message if one fails; real ones are in integration/."""

from pathlib import Path
from typing import Any, cast

import pytest
from docker.errors import APIError

from harness.cluster import Limits, ShapeLink, WorkerLink
from harness.errors import EXIT_MISSING
from harness.provision.docker import tc_helper
from harness.provision.docker.container_settings import RunPlace
from harness.provision.docker.containers import ContainerNode, Limited, limit_links
from harness.provision.failures import ProvisionError

PLACE = RunPlace(
    run_id="r",
    image="sha256:1",
    folder=Path("/run"),
    token=Path("/run/token"),
    reads=(),
    writes=(),
    current=Path("/"),
    environment={},
)


class FakeEngine:
    """Notes which helpers it was asked for, and lets each end with a status and a last word."""

    def __init__(self, status: int = 0, message: bytes = b"") -> None:
        self.status = status
        self.message = message
        self.asked: list[tuple[str, list[str]]] = []
        self.refuses = False
        self.n_left = 0
        self.containers = self

    def create(self, image: str, command: list[str], *, network_mode: str, **options: Any) -> "FakeEngine":
        assert (options["cap_drop"], options["cap_add"], options["user"]) == (["ALL"], ["NET_ADMIN"], "0:0")
        self.asked.append((network_mode, command[2:]))
        self.n_left += 1
        return self

    def start(self) -> None:
        if self.refuses:
            raise APIError("cannot join network of a non running container")

    def wait(self, timeout: float) -> dict[str, int]:
        return {"StatusCode": self.status}

    def logs(self, tail: int) -> bytes:
        return self.message

    def remove(self, *, force: bool, v: bool) -> None:
        self.n_left -= 1


class FakeContainer:
    status = "running"

    def __init__(self, number: str) -> None:
        self.id = number

    def reload(self) -> None:
        return


def workers(*ids: str) -> dict[int, ContainerNode]:
    return {
        worker: ContainerNode(
            role=f"worker-{worker}",
            container=cast("Any", FakeContainer(number)),
            control_address="",
            data_address=f"10.0.0.{worker}",
        )
        for worker, number in enumerate(ids)
    }


def limit(engine: FakeEngine, nodes: dict[int, ContainerNode], limits: Limits, limited: Limited) -> Limited:
    return limit_links(cast("Any", engine), PLACE, nodes, limits, limited)


def limits(first: float | None, second: float | None) -> Limits:
    return ShapeLink(rate_mbit=first, burst_kb=64, workers=((1, WorkerLink(rate_mbit=second)),)).limits(2)


def test_only_links_that_change_are_touched() -> None:
    engine, nodes = FakeEngine(), workers("a", "b")
    limited = limit(engine, nodes, limits(100.0, 10.0), {})
    assert sorted(engine.asked) == [
        ("container:a", [tc_helper.__name__, "10.0.0.0", "100.0", "64000"]),
        ("container:b", [tc_helper.__name__, "10.0.0.1", "10.0", "64000"]),
    ]
    engine.asked.clear()
    assert limit(engine, nodes, limits(100.0, 10.0), limited) == limited
    # A session on fewer workers leaves the others as they are.
    limited = limit(engine, nodes, limits(100.0, 10.0)[:1], limited)
    assert engine.asked == []
    limited = limit(engine, nodes, limits(None, 10.0), limited)
    assert engine.asked == [("container:a", [tc_helper.__name__, "10.0.0.0"])]
    assert set(limited) == {"b"}
    assert engine.n_left == 0


def test_a_container_in_place_of_another_has_no_limit_yet() -> None:
    engine = FakeEngine()
    limited = limit(engine, workers("a", "b"), limits(None, 10.0), {})
    engine.asked.clear()
    limited = limit(engine, workers("a", "c"), limits(None, 10.0), limited)
    assert [network for network, _ in engine.asked] == ["container:c"]
    assert set(limited) == {"c"}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (
            tc_helper.NO_IFB,
            "links cannot be limited both ways without the kernel's device ifb: no such",
        ),
        (tc_helper.REFUSED, "cannot limit the link of worker 0: no such thing"),
    ],
)
def test_what_this_host_lacks_costs_one_line_and_status_3(status: int, expected: str) -> None:
    engine = FakeEngine(status, b"no such thing\n")
    with pytest.raises(ProvisionError) as caught:
        limit(engine, workers("a", "b"), limits(100.0, None), {})
    assert caught.value.exit_status == EXIT_MISSING
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert engine.n_left == 0


def test_a_worker_that_has_just_ended_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    engine.refuses = True
    with pytest.raises(ProvisionError, match="cannot join network"):
        limit(engine, workers("a", "b"), limits(100.0, None), {})
    monkeypatch.setattr(FakeContainer, "status", "exited")
    limit(engine, workers("a", "b"), limits(100.0, None), {})
    assert engine.n_left == 0
