"""Bytes that a worker sent: by each connection of its process, and by its network interface.

Connections are read from the kernel by `inet_diag`, the interface by its address, while no step is in
flight; the driver turns two readings of all workers into bytes.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from pyroute2 import DiagSocket, IPRoute

from harness.worker.process.os_process import boot_id

Address: TypeAlias = tuple[str, int]

_ESTABLISHED = 1
_WITH_TCP_INFO = 1 << 1  # INET_DIAG_INFO is extension 2, which is bit 1
_SETTLE_S = 0.2
_SETTLE_POLL_S = 0.005


@dataclass(frozen=True, kw_only=True, slots=True)
class TcpConnection:
    """One end of an established TCP connection.

    Attributes:
        inode: number that distinguishes connections that use the same addresses in turn.
        acked_bytes: acknowledged bytes, each counted once.
        retransmitted_bytes: bytes sent again.
    """

    inode: int
    local: Address
    remote: Address
    acked_bytes: int
    retransmitted_bytes: int


Reading: TypeAlias = tuple[TcpConnection, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TcpTraffic:
    """Traffic between workers in a number of steps.

    Attributes:
        matrix: [i][j] → bytes per step from worker i to worker j; 0 on the diagonal.
        retransmitted_bytes_per_step: sum over all connections between workers.
        n_closed: connections that ended in between, whose bytes are unknown.
    """

    matrix: tuple[tuple[float, ...], ...]
    retransmitted_bytes_per_step: float
    n_closed: int

    @property
    def bytes_per_step(self) -> float:
        """Bytes that all workers together sent per step."""
        return sum(map(sum, self.matrix))


def read_connections() -> Reading | None:
    """Counters of this process's established connections, sorted by addresses; None if unknown.

    It waits a moment until the last bytes are acknowledged.
    """
    deadline_s = time.monotonic() + _SETTLE_S
    try:
        with DiagSocket() as diag:
            while True:
                connections, n_in_flight = _read(diag)
                if n_in_flight == 0 or time.monotonic() > deadline_s:
                    return connections
                time.sleep(_SETTLE_POLL_S)
    except Exception:  # noqa: BLE001  whatever pyroute2 or a sandboxed kernel answer, the result is the same: unknown
        return None


def merge(
    before: Sequence[Reading | None], after: Sequence[Reading | None], *, n_steps: int
) -> TcpTraffic | None:
    """Bytes that workers sent each other between two readings.

    A connection belongs to workers i and j if i has it with the addresses (a, b) and j with (b, a). New
    connections count from zero.

    Args:
        before, after: one reading for each worker.
        n_steps: steps between the readings.
    Returns:
        None if a reading is missing.
    """
    first, last = _complete(before), _complete(after)
    if first is None or last is None or n_steps < 1:
        return None
    n_workers = len(last)
    owners, old_owners = _owners(last), _owners(first)
    base = {_identity(i, connection): connection for i, reading in enumerate(first) for connection in reading}
    matrix = [[0.0] * n_workers for _ in range(n_workers)]
    retransmitted_bytes = 0
    for i, reading in enumerate(last):
        for connection in reading:
            j = owners.get((connection.remote, connection.local))
            if j is None or j == i:
                continue
            old = base.get(_identity(i, connection))
            matrix[i][j] += connection.acked_bytes - (old.acked_bytes if old else 0)
            retransmitted_bytes += connection.retransmitted_bytes - (old.retransmitted_bytes if old else 0)
    now = {_identity(i, connection) for i, reading in enumerate(last) for connection in reading}
    closed = [
        key
        for key, old in base.items()
        if key not in now and old_owners.get((old.remote, old.local), key[0]) != key[0]
    ]
    return TcpTraffic(
        matrix=tuple(tuple(sent / n_steps for sent in row) for row in matrix),
        retransmitted_bytes_per_step=retransmitted_bytes / n_steps,
        n_closed=len(closed),
    )


def _complete(readings: Sequence[Reading | None]) -> list[Reading] | None:
    present = [reading for reading in readings if reading is not None]
    return present if len(present) == len(readings) else None


def _owners(readings: Sequence[Reading]) -> dict[tuple[Address, Address], int]:
    return {
        (connection.local, connection.remote): worker
        for worker, reading in enumerate(readings)
        for connection in reading
    }


def _identity(worker: int, connection: TcpConnection) -> tuple[int, int, Address, Address]:
    return worker, connection.inode, connection.local, connection.remote


def _read(diag: DiagSocket) -> tuple[Reading, int]:
    own = _own_inodes()
    connections: list[TcpConnection] = []
    n_in_flight = 0
    # gRPC's sockets are of the IPv6 family even if they carry IPv4.
    for family in (socket.AF_INET, socket.AF_INET6):
        for message in diag.get_sock_stats(
            family=family, states=1 << _ESTABLISHED, extensions=_WITH_TCP_INFO
        ):
            info = message.get_attr("INET_DIAG_INFO")
            if info is None or message["idiag_inode"] not in own:
                continue
            connections.append(_connection(message, info))
            n_in_flight += bool(info["tcpi_unacked"] or info["tcpi_notsent_bytes"])
    return tuple(
        sorted(connections, key=lambda connection: (connection.local, connection.remote))
    ), n_in_flight


def _connection(message: Mapping[str, object], info: Mapping[str, int]) -> TcpConnection:
    return TcpConnection(
        inode=int(str(message["idiag_inode"])),
        local=(plain_address(str(message["idiag_src"])), int(str(message["idiag_sport"]))),
        remote=(plain_address(str(message["idiag_dst"])), int(str(message["idiag_dport"]))),
        acked_bytes=info["tcpi_bytes_acked"],
        retransmitted_bytes=info["tcpi_bytes_retrans"],
    )


def plain_address(text: str) -> str:
    """Common form of an IP address for every family of sockets: `::ffff:10.0.0.1` is `10.0.0.1`."""
    address = ipaddress.ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _own_inodes() -> set[int]:
    inodes: set[int] = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            target = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115
        except OSError:
            continue  # the listing's descriptor, or one closed by another thread
        if target.startswith("socket:["):
            inodes.add(int(target[len("socket:[") : -1]))
    return inodes


_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST_DUMP = 0x301
_NLMSG_ERROR = 2


def inet_diag_problem() -> str | None:
    """Reason why the kernel does not answer; None if it does."""
    # inet_diag_req_v2: family, protocol, extensions, pad, states, then a socket id of zeros (match all).
    body = struct.pack("=BBBxI48x", socket.AF_INET, socket.IPPROTO_TCP, 0, 0xFFFFFFFF)
    header = struct.pack("=IHHII", 16 + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST_DUMP, 1, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as link:
            link.settimeout(2.0)
            link.sendto(header + body, (0, 0))
            answer = link.recv(65536)
    except (AttributeError, OSError) as error:
        return f"not available ({getattr(error, 'strerror', None) or error})"
    kind = struct.unpack_from("=IH", answer)[1]
    if kind == _NLMSG_ERROR:
        code = -struct.unpack_from("=i", answer, 16)[0]
        return f"refused ({os.strerror(code)})" if code else None
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Interface:
    """A network interface and its sent bytes.

    Attributes:
        kernel: boot id. namespace: network namespace. index: number in the namespace. Workers share an
            interface if all three are equal.
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
        None if a reading is missing, or the two readings are of different interfaces.
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
        # If workers share it, the last reading has the bytes of all.
        totals[place] = max(totals.get(place, 0), reading.sent_bytes)
    return totals
