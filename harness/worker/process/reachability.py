"""A door at which other workers see whether they reach this one over the network of their data."""

import contextlib
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

Door: TypeAlias = tuple[str, int]


class OpenDoor:
    """Lets everybody in and out again, from now until this process ends, who knocks at a free port.

    Attributes:
        port: where it is.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._serve, name="door", daemon=True).start()

    def _serve(self) -> None:
        while True:
            # Whoever leaves before he is let in has seen all that he came for.
            with contextlib.suppress(OSError):
                self._listener.accept()[0].close()


def unanswered(doors: Sequence[Door], wait_s: float) -> list[int]:
    """Knock at doors, at all of them at the same time; return the indices of those where nobody answers."""
    with ThreadPoolExecutor(max(1, len(doors))) as pool:
        opened = list(pool.map(lambda door: answers(door, wait_s), doors))
    return [index for index, is_open in enumerate(opened) if not is_open]


def answers(door: Door, wait_s: float) -> bool:
    """Whether somebody lets in who knocks there, within that time."""
    try:
        socket.create_connection(door, timeout=wait_s).close()
    except OSError:
        return False
    return True
