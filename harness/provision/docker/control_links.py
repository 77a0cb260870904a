"""Control links from the driver to a run's containers, and if they still reach them."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from harness.worker.process.messages import CutOff

_PERIOD_S = 2.0
_WAIT_S = 3.0
_MISSES = 2  # one may be a busy machine's
_CLOSED_PORT = 1  # a kernel that is reached refuses it, whatever runs there
_END_S = 5.0


class ControlLinks:
    """Looks at each container from time to time, in a thread of its own.

    Ray tells after half a minute and longer, and of an actor without a network only that it ended.
    """

    def __init__(self) -> None:
        self._addresses: dict[str, str] = {}
        self._silent_from_s: dict[str, float] = {}
        self._n_missed: dict[str, int] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="control-links", daemon=True)
        self._thread.start()

    def watch(self, container_id: str, address: str) -> None:
        """Look at a container from now on."""
        self._addresses[container_id] = address

    def forget(self, container_id: str) -> None:
        """Look at it no more."""
        self._addresses.pop(container_id, None)

    def failure(self, container_id: str) -> CutOff | None:
        """How long a container has not been reached; None while it is."""
        if self._n_missed.get(container_id, 0) < _MISSES:
            return None
        return CutOff(peer=None, waited_s=time.monotonic() - self._silent_from_s[container_id])

    def close(self) -> None:
        """Look at none any more."""
        self._is_over.set()
        self._thread.join(_WAIT_S + _END_S)

    def _look(self) -> None:
        while not self._is_over.wait(_PERIOD_S):
            watched = dict(self._addresses)
            if not watched:
                continue
            asked_s = time.monotonic()
            with ThreadPoolExecutor(len(watched)) as pool:
                reached = dict(zip(watched, pool.map(is_reached, watched.values()), strict=True))
            for container_id, is_well in reached.items():
                if is_well:
                    self._n_missed.pop(container_id, None)
                else:
                    if container_id not in self._n_missed:
                        self._silent_from_s[container_id] = asked_s
                    self._n_missed[container_id] = self._n_missed.get(container_id, 0) + 1


def is_reached(address: str) -> bool:
    """Whether anything answers at an address, if only to refuse."""
    try:
        socket.create_connection((address, _CLOSED_PORT), timeout=_WAIT_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True
