"""Reaction of the helper when the kernel refuses; tests of a real link are in integration/."""

from collections.abc import Iterator

import pytest
from pyroute2.netlink.exceptions import NetlinkError

from harness.provision.docker import tc_helper

ADDRESS = "10.1.2.3"


class FakeNetlink:
    """A namespace with one interface, whose kernel refuses some kinds of device, queue or filter."""

    def __init__(self, refused: str = "") -> None:
        self.refused = refused
        self.devices: set[str] = set()
        self.made: set[tuple[str, int]] = set()

    def __enter__(self) -> "FakeNetlink":
        return self

    def __exit__(self, *error: object) -> None:
        return

    def get_addr(self, address: str) -> list[dict[str, int]]:
        return [{"index": 7}] if address == ADDRESS else []

    def get_qdiscs(self, index: int) -> Iterator["Attributes"]:
        return (Attributes(kind) for kind, of in self.made if of == index)

    def link_lookup(self, ifname: str) -> list[int]:
        return [9] if ifname in self.devices else []

    def link(
        self, command: str, *, ifname: str = "", kind: str = "", state: str = "", index: int = 0
    ) -> None:
        if command == "del":
            self.devices.clear()
            self.made = {(result, of) for result, of in self.made if of != index}
            return
        self._refuse(kind)
        self.devices.add(ifname)

    def tc(
        self, command: str, kind: str = "", interface: int = 0, *, index: int = 0, **options: object
    ) -> None:
        if command == "del":
            text = "tbf" if options["parent"] == tc_helper.TC_H_ROOT else "ingress"
            self.made.remove((text, index))
            return
        self._refuse(kind if interface != 9 else f"{kind} of {interface}")
        self.made.add((kind, interface))

    def _refuse(self, kind: str) -> None:
        if kind == self.refused:
            raise NetlinkError(95, "Operation not supported")


class Attributes:
    def __init__(self, kind: str) -> None:
        self._kind = kind

    def get_attr(self, name: str) -> str:
        return self._kind


def run(monkeypatch: pytest.MonkeyPatch, netlink: FakeNetlink, *argv: str) -> int:
    monkeypatch.setattr(tc_helper, "IPRoute", lambda: netlink)
    return tc_helper.main(argv)


def test_a_link_is_limited_both_ways_again_and_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    netlink = FakeNetlink()
    both_ways = {("tbf", 7), ("tbf", 9), ("ingress", 7), ("u32", 7)}
    assert run(monkeypatch, netlink, ADDRESS, "100", "50000") == 0
    assert netlink.made == both_ways
    netlink.made.discard(("u32", 7))  # which goes with its queue
    assert run(monkeypatch, netlink, ADDRESS, "10", "16000") == 0
    assert netlink.made == both_ways
    netlink.made.discard(("u32", 7))
    assert run(monkeypatch, netlink, ADDRESS) == 0
    assert (netlink.made, netlink.devices) == (set(), set())


@pytest.mark.parametrize(
    ("refused", "status"),
    [("ifb", tc_helper.NO_IFB), ("tbf of 9", tc_helper.REFUSED), ("ingress", tc_helper.REFUSED)],
)
@pytest.mark.parametrize("before", [False, True])
def test_what_cannot_be_limited_both_ways_is_not_limited(
    refused: str,
    status: int,
    before: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    netlink = FakeNetlink()
    if before:
        run(monkeypatch, netlink, ADDRESS, "100", "50000")
        netlink.made.discard(("u32", 7))
    netlink.refused = refused
    assert run(monkeypatch, netlink, ADDRESS, "100", "50000") == status
    assert (netlink.made, netlink.devices) == (set(), set())
    lines = capsys.readouterr().err
    assert lines.count("\n") == 1
    assert "not supported" in lines


def test_an_address_of_nobody_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, FakeNetlink(), "10.9.9.9", "100", "50000") == tc_helper.NO_ADDRESS
    assert "10.9.9.9" in capsys.readouterr().err
