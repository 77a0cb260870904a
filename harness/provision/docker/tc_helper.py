"""Limits the links of its network namespace in both directions, or frees them.

`python -m harness.provision.docker.tc_helper ADDRESS [RATE_MBIT BURST_BYTES]`; without a rate, it frees. It
runs in a separate container next to a worker's, because it needs the capability NET_ADMIN, which workers do
not have. Outgoing traffic waits in a token bucket on the address's interface. Incoming traffic is redirected
to a token bucket on an `ifb` device, because only sent packets can wait.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl import TC_H_INGRESS, TC_H_ROOT

NO_ADDRESS = 4
NO_IFB = 5
REFUSED = 6
"""Exit statuses, different from Python's own."""

_DEVICE = "stratbench-in"
_EVERY_PROTOCOL = 0x0003  # ETH_P_ALL
_ROOT = 0x10000
_INGRESS = 0xFFFF0000
_QUEUE_S = 0.05
_MOST_QUEUE_S = 2.0
# Four of the largest pieces that the kernel sends at once; with two, slow links carried 20 % less.
_PIECES_BYTES = 256 * 1024


class NoDeviceError(Exception):
    """This kernel has no device that can delay incoming traffic."""


def main(argv: Sequence[str]) -> int:
    """Limit or free the links; print a failure in one line."""
    address, *limit = argv
    with IPRoute() as netlink:
        try:
            interface = _interface_of(netlink, address)
            if interface is None:
                sys.stderr.write(f"no interface has the address {address}\n")
                return NO_ADDRESS
            free(netlink, interface)
            if limit:
                shape(netlink, interface, rate_mbit=float(limit[0]), burst_bytes=int(limit[1]))
        except NoDeviceError as error:
            sys.stderr.write(f"{error}\n")
            return NO_IFB
        except NetlinkError as error:
            sys.stderr.write(f"{error}\n")
            return REFUSED
    return 0


def shape(netlink: Any, interface: int, *, rate_mbit: float, burst_bytes: int) -> None:  # noqa: ANN401  pyroute2 has no types
    """Limit a free interface in both directions; an error leaves both free.

    Args:
        interface: index of the interface.
    Raises:
        NoDeviceError: no `ifb` device can be made.
        NetlinkError: the kernel refused another request.
    """
    try:
        netlink.link("add", ifname=_DEVICE, kind="ifb", state="up")
    except NetlinkError as error:
        raise NoDeviceError(str(error)) from error
    try:
        (device,) = netlink.link_lookup(ifname=_DEVICE)
        rate_bytes = rate_mbit * 1e6 / 8
        bucket = {
            "rate": int(rate_bytes),
            "burst": burst_bytes,
            "limit": burst_bytes + _queue_bytes(rate_bytes),
        }
        netlink.tc("add", "tbf", device, handle=_ROOT, **bucket)
        netlink.tc("add", "ingress", interface, handle=_INGRESS)
        netlink.tc(
            "add-filter",
            "u32",
            interface,
            parent=_INGRESS,
            prio=1,
            protocol=_EVERY_PROTOCOL,
            target=_ROOT,
            keys=["0x0/0x0+0"],
            action={"kind": "mirred", "direction": "egress", "action": "redirect", "ifindex": device},
        )
        netlink.tc("add", "tbf", interface, handle=_ROOT, **bucket)
    except NetlinkError:
        free(netlink, interface)
        raise


def free(netlink: Any, interface: int) -> None:  # noqa: ANN401
    """Remove everything that `shape` has created on an interface, even if incomplete."""
    kinds = {qdisc.get_attr("TCA_KIND") for qdisc in netlink.get_qdiscs(index=interface)}
    if "tbf" in kinds:
        netlink.tc("del", index=interface, parent=TC_H_ROOT)
    if "ingress" in kinds:
        netlink.tc("del", index=interface, parent=TC_H_INGRESS)
    for device in netlink.link_lookup(ifname=_DEVICE):
        netlink.link("del", index=device)


def _queue_bytes(rate_bytes: float) -> int:
    """Bytes that may wait for the bucket; like a switch, it drops the rest."""
    return int(max(rate_bytes * _QUEUE_S, min(_PIECES_BYTES, rate_bytes * _MOST_QUEUE_S)))


def _interface_of(netlink: Any, address: str) -> int | None:  # noqa: ANN401
    addresses = netlink.get_addr(address=address)
    return int(addresses[0]["index"]) if addresses else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
