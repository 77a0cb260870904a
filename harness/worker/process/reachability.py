"""Probes of connections between workers over the data network."""

import contextlib
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

ProbeAddress: TypeAlias = tuple[str, int]
"""Host and port."""


class ProbeListener:
    """Accepts connections at a free port and closes them at once, until this process ends."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._serve, name="probe-listener", daemon=True).start()

    def _serve(self) -> None:
        while True:
            # A peer that has already closed its end has its result.
            with contextlib.suppress(OSError):
                self._listener.accept()[0].close()


def unreachable(addresses: Sequence[ProbeAddress], wait_s: float) -> list[int]:
    """Indices of the addresses that refuse a connection; all are tried at once."""
    with ThreadPoolExecutor(max(1, len(addresses))) as pool:
        reached = list(pool.map(lambda address: is_reachable(address, wait_s), addresses))
    return [index for index, is_reached in enumerate(reached) if not is_reached]


def is_reachable(address: ProbeAddress, wait_s: float) -> bool:
    """True if a connection is accepted within `wait_s` seconds."""
    try:
        socket.create_connection(address, timeout=wait_s).close()
    except OSError:
        return False
    return True
