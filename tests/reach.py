"""Listening sockets of a run, and which of them answer from here."""

import os
import socket
import struct
from collections.abc import Collection, Iterator
from pathlib import Path

_LISTENS = "0A"
Address = tuple[str, int]


def listening(pids: Collection[int], *, seen_by: int) -> set[Address]:
    """Addresses that processes listen on in the network namespace of another one.

    Args:
        seen_by: process id; addresses in namespaces other than its own are not seen.
    """
    inodes = {inode for pid in pids for inode in _sockets(pid)}
    return {address for inode, address in _listeners(seen_by) if inode in inodes}


def answering(ports: Collection[int]) -> set[Address]:
    """Ports of these that answer here, on loopback or on the address that strangers see.

    Those that some program of this namespace listens on itself are left out.
    """
    others = {port for _, (_, port) in _listeners(os.getpid())}
    hosts = {"127.0.0.1", *_outside_address()}
    ports_to_try = {(host, port) for host in hosts for port in ports if port not in others}
    return {address for address in ports_to_try if _answers(address)}


def _answers(address: Address) -> bool:
    try:
        socket.create_connection(address, timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def _outside_address() -> Iterator[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))  # sends nothing
        except OSError:
            return
        yield probe.getsockname()[0]


def _listeners(pid: int) -> Iterator[tuple[str, Address]]:
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS:
                host, _, port = fields[1].partition(":")
                yield fields[9], (socket.inet_ntop(family, _network_order(host)), int(port, 16))


def _network_order(host: str) -> bytes:
    # The kernel prints the words of an address as numbers of its own byte order.
    words = [int(host[start : start + 8], 16) for start in range(0, len(host), 8)]
    return struct.pack(f"={len(words)}I", *words)


def _sockets(pid: int) -> Iterator[str]:
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            target = str(entry.readlink())
            if target.startswith("socket:["):
                yield target[len("socket:[") : -1]
    except OSError:
        return  # it has ended, or closed what was looked at
