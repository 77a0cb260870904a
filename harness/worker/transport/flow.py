"""What a worker sends to the next one, while more of it is still to come from the one before."""

import socket
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.worker.transport.ring_connections import RingError

Vector = npt.NDArray[Any]


class Flow:
    """What one call of the ring sends, as one stream of bytes of which more and more are ready.

    Attributes:
        ready_bytes: that could go out now.
        came_s: when the first bytes of the same call came in; 0 before.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._rest: list[memoryview] = []
        self._n_unsent = 0
        self.ready_bytes = 0
        self.came_s = 0.0

    def add(self, vectors: Iterable[Vector], *, ready: bool) -> None:
        """Send these after what there is already.

        Args:
            ready: they can go out once all before them have; others as they come in.
        """
        segments = [as_bytes(vector) for vector in vectors]
        n_bytes = sum(map(len, segments))
        self._rest += [segment for segment in segments if len(segment)]
        self._n_unsent += n_bytes
        self.ready_bytes += n_bytes if ready else 0

    def allow(self, n_bytes: int) -> None:
        """So many bytes more are ready; the last that arrive go no further."""
        self.ready_bytes = min(self.ready_bytes + n_bytes, self._n_unsent)

    def send(self) -> None:
        """Send as much as the connection takes now."""
        while self.ready_bytes:
            segment = self._rest[0]
            try:
                n_bytes = self._connection.send(segment[: self.ready_bytes])
            except BlockingIOError:
                return
            except OSError as error:
                raise RingError(f"ring: the next worker must stay, got {error}") from error
            self.ready_bytes -= n_bytes
            self._n_unsent -= n_bytes
            self._rest[0] = segment[n_bytes:]
            if not len(self._rest[0]):
                del self._rest[0]


def as_bytes(vector: Vector) -> memoryview:
    """The bytes of a vector where they lie."""
    return vector.view(np.uint8).data
