"""The worker's end of sums over all workers: vectors come and go while a thread moves them."""

import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from harness.worker.ring import RingError, Vector
from strategies.program import given_token, taken_token

_ALIGNMENT_BYTES = 64  # TensorFlow takes arrays so aligned as they are and copies others
_END_S = 10.0


class Transport(Protocol):
    """Sums vectors over all workers."""

    def sum(self, values: Vector, total: Vector) -> float:
        """Sum vectors of one length and type into `total`, in the same order of sums on every worker.

        Returns:
            when the first came from another worker, `time.time()`.
        """

    def close(self) -> None:
        """Give up; a sum under way fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summed:
    """When a sum began, when the first of others came, and when it was made; wall clock.

    Attributes:
        n_bytes: of the vector.
    """

    name: str
    start_s: float
    came_s: float
    end_s: float
    n_bytes: int


class Exchange:
    """Sums over all workers, made by a thread one after the other in one order that never changes.

    Attributes:
        seen: takes what is seen of each sum; None where nobody looks.
    Args:
        transport: belongs to the exchange from now on.
        names: of the sums, in their order on every worker.
    """

    def __init__(self, transport: Transport, names: Sequence[str]) -> None:
        self.seen: list[Summed] | None = None
        self._transport = transport
        self._given: dict[str, queue.SimpleQueue[Vector | None]] = {n: queue.SimpleQueue() for n in names}
        self._taken: dict[str, queue.SimpleQueue[Vector | None]] = {n: queue.SimpleQueue() for n in names}
        self._pools = {name: _Pool() for name in names}
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="exchange", daemon=True)
        self._thread.start()

    def calls(self) -> dict[str, Callable[..., Vector | None]]:
        """What a step calls, by token: to give a vector, which returns at once, and to wait for its sum.

        A wait raises `RingError` when a worker has gone.
        """
        calls: dict[str, Callable[..., Vector | None]] = {}
        for name, given in self._given.items():
            calls[given_token(name)] = given.put
            calls[taken_token(name)] = self._taker(self._taken[name])
        return calls

    def close(self) -> None:
        """End the sums; who waits for one is told so."""
        self._transport.close()
        for given in self._given.values():
            given.put(None)
        self._thread.join(_END_S)

    def _taker(self, taken: "queue.SimpleQueue[Vector | None]") -> Callable[[], Vector]:

        def take() -> Vector:
            total = taken.get()
            if total is None:
                taken.put(None)
                raise RingError(str(self._failure or "exchange: the session has ended"))
            return total

        return take

    def _run(self) -> None:
        try:
            while True:
                for name, given in self._given.items():
                    values = given.get()
                    if values is None:
                        return
                    total = self._pools[name].free(values)
                    self._sum(name, values, total)
                    self._taken[name].put(total)
                    del values, total
        except Exception as error:  # noqa: BLE001 - whatever it is, the next step raises it
            self._failure = error
        finally:
            for taken in self._taken.values():
                taken.put(None)

    def _sum(self, name: str, values: Vector, total: Vector) -> None:
        start_s = time.time()
        came_s = self._transport.sum(values, total)
        if (seen := self.seen) is not None:
            seen.append(
                Summed(name=name, start_s=start_s, came_s=came_s, end_s=time.time(), n_bytes=values.nbytes)
            )


class _Pool:
    """Vectors for the totals of one sum, used again when nobody else has them: new memory costs page faults.

    TensorFlow takes a vector as it is, and a step may keep it as the value of a variable.
    """

    def __init__(self) -> None:
        self._vectors: list[Vector] = []

    def free(self, like: Vector) -> Vector:
        """A vector of the length and type of another."""
        for i in range(len(self._vectors)):
            # Held by the list and by the call's own argument.
            if sys.getrefcount(self._vectors[i]) == 2:
                return self._vectors[i]
        made = _aligned(like)
        self._vectors.append(made)
        return made


def _aligned(like: Vector) -> Vector:
    store: np.ndarray[Any, Any] = np.empty(like.nbytes + _ALIGNMENT_BYTES, np.uint8)
    start = -store.ctypes.data % _ALIGNMENT_BYTES
    return store[start : start + like.nbytes].view(like.dtype)
