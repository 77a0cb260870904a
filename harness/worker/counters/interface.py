"""Bytes sent by a network interface, which is found by its address.

A worker reads the interface through which it sends, with `read_interface`, while no step is in flight; the
driver turns two readings of all workers into bytes with `sent_bytes`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyroute2 import IPRoute

from harness.worker.process.os_process import boot_id


@dataclass(frozen=True, kw_only=True, slots=True)
class Interface:
    """A network interface and its sent bytes.

    Attributes:
        kernel: boot id. namespace: network namespace. index: in the namespace. Workers share an interface if
            all three are equal.
    """

    kernel: str
    namespace: str
    index: int
    sent_bytes: int
    name: str = ""


def read_interface(address: str) -> Interface | None:
    """Read the counter of this process's interface with an address; None if there is none."""
    try:
        with IPRoute() as route:
            (index,) = {
                entry["index"]
                for entry in route.get_addr()
                if address == (entry.get_attr("IFA_LOCAL") or entry.get_attr("IFA_ADDRESS"))
            }
            (link,) = route.get_links(index)
            sent_bytes = int(link.get_attr("IFLA_STATS64")["tx_bytes"])
        kernel = boot_id()
        namespace = str(Path("/proc/self/ns/net").readlink())
    except Exception:  # noqa: BLE001  whatever pyroute2 or a sandboxed kernel answer, the result is the same: unknown
        return None
    return Interface(
        kernel=kernel,
        namespace=namespace,
        index=index,
        sent_bytes=sent_bytes,
        name=str(link.get_attr("IFLA_IFNAME")),
    )


def sent_bytes(before: Sequence[Interface | None], after: Sequence[Interface | None]) -> int | None:
    """Bytes that all workers' interfaces sent between two readings, each interface counted once.

    Args:
        before, after: one reading for each worker.
    Returns:
        None if a reading is missing, or is of another interface than the first one.
    """
    first, last = _totals(before), _totals(after)
    if first is None or last is None or first.keys() != last.keys():
        return None
    return sum(last.values()) - sum(first.values())


def _totals(readings: Sequence[Interface | None]) -> dict[tuple[str, str, int], int] | None:
    totals: dict[tuple[str, str, int], int] = {}
    for reading in readings:
        if reading is None:
            return None
        place = (reading.kernel, reading.namespace, reading.index)
        # Of workers that share it, the one that reads last sees what all have sent.
        totals[place] = max(totals.get(place, 0), reading.sent_bytes)
    return totals
