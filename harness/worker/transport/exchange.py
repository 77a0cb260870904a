"""A worker's interface to transfers between all workers, which a thread makes in the background."""

import queue
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from harness.worker.transport.shares import WorkerShares
from harness.worker.transport.tcp_ring import Ring, RingError, Scratch, Vector
from strategies.ir.train_graph import BEFORE_ALL, Transfer

_WIRES: Mapping[str, np.dtype[Any]] = {"bfloat16": np.dtype(ml_dtypes.bfloat16)}
_ALIGNMENT_BYTES = 64  # TensorFlow uses arrays with this alignment in place, and copies others
_END_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Times of a transfer, wall clock: its start, the first arrival from others, and its end.

    Attributes:
        kind: see `Transfer`. n_bytes: size of the whole sum, gathered or concatenated result.
    """

    name: str
    kind: str
    start_s: float
    came_s: float
    end_s: float
    n_bytes: int


class Exchange:
    """Transfers between all workers; one thread makes them one by one, in a fixed order.

    Attributes:
        seen: statistics of transfers so far; None to collect none.
    Args:
        transport: ring of the workers, which belongs to the exchange from now on.
        transfers: transfers in the order common to all workers.
        rank: rank of this worker.
    """

    def __init__(self, transport: Ring, transfers: Sequence[Transfer], rank: int) -> None:
        self.seen: list[Moved] | None = None
        self._transport = transport
        self._rank = rank
        self._transfers = tuple(transfers)
        self._queues_in: dict[str, queue.SimpleQueue[Sequence[Vector] | None]] = {
            t.name: queue.SimpleQueue() for t in transfers
        }
        self._queues_out: dict[str, queue.SimpleQueue[list[Vector] | None]] = {
            t.name: queue.SimpleQueue() for t in transfers
        }
        self._pools: defaultdict[tuple[str, int], _Pool] = defaultdict(_Pool)
        self._shares = {
            t.name: WorkerShares(t.blocks, transport.size, rank if t.kind == "gather" else None)
            for t in transfers
            if t.blocks
        }
        self._copies = Scratch()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="exchange", daemon=True)
        self._thread.start()

    def calls(self) -> dict[str, Callable[..., list[Vector] | None]]:
        """Functions that a step calls, by token: one gives vectors and returns at once, another waits.

        A wait raises `RingError` if a worker has gone.
        """
        calls: dict[str, Callable[..., list[Vector] | None]] = {}
        for transfer in self._transfers:
            calls[transfer.given_token] = _giver(self._queues_in[transfer.name])
            calls[transfer.taken_token] = self._taker(self._queues_out[transfer.name])
        return calls

    def close(self) -> None:
        """End the transfers and wake threads that wait for them."""
        self._transport.close()
        for queue_in in self._queues_in.values():
            queue_in.put(None)
        self._thread.join(_END_S)

    def _taker(self, queue_out: "queue.SimpleQueue[list[Vector] | None]") -> Callable[[], list[Vector]]:

        def take() -> list[Vector]:
            received = queue_out.get()
            if received is None:
                queue_out.put(None)
                raise RingError(str(self._failure or "exchange: the session has ended"))
            return received

        return take

    def _run(self) -> None:
        try:
            while True:
                for transfer in self._transfers:
                    vectors = self._queues_in[transfer.name].get()
                    if vectors is None:
                        return
                    received = self._moved(transfer, vectors)
                    if received:
                        self._queues_out[transfer.name].put(received)
                    del vectors, received
        except Exception as error:  # noqa: BLE001 - whatever it is, the next step raises it
            self._failure = error
        finally:
            for queue_out in self._queues_out.values():
                queue_out.put(None)

    def _moved(self, transfer: Transfer, vectors: Sequence[Vector]) -> list[Vector]:
        start_s = time.time()
        into, came_s = self._transferred(transfer, vectors)
        if (seen := self.seen) is not None:
            end_s = time.time()
            seen.append(
                Moved(
                    name=transfer.name,
                    kind=transfer.kind,
                    start_s=start_s,
                    came_s=came_s,
                    end_s=end_s,
                    n_bytes=self._moved_bytes(transfer, vectors, into),
                )
            )
        return into

    def _transferred(self, transfer: Transfer, vectors: Sequence[Vector]) -> tuple[list[Vector], float]:
        dtypes = [vector.dtype for vector in vectors]
        if transfer.kind == "concatenate":
            return self._transport.concatenate(vectors, partial(self._room, transfer, dtypes))
        if transfer.kind == "scatter":
            return self._scattered(transfer, vectors)
        if transfer.kind == "gather":
            return self._gathered(transfer, vectors[0])
        into = self._room(transfer, dtypes, [len(vectors[0])])
        return into, self._transport.sum(vectors[0], into[0], _wire(transfer), transfer.factor)

    def _scattered(self, transfer: Transfer, tensors: Sequence[Vector]) -> tuple[list[Vector], float]:
        shares = self._shares[transfer.name]
        dtype = tensors[0].dtype
        (total,) = self._room(transfer, [dtype], [shares.lengths[self._rank]])
        copies = shares.copied_from(tensors, self._copies.of(shares.n_copied, dtype))
        came_s = self._transport.scatter(copies, total, transfer.factor)
        return [total] if len(total) else [], came_s

    def _gathered(self, transfer: Transfer, own: Vector) -> tuple[list[Vector], float]:
        shares = self._shares[transfer.name]
        into = self._room(transfer, [own.dtype] * len(shares.vector_lengths), shares.vector_lengths)
        copies = self._copies.of(shares.n_copied, own.dtype)
        came_s = self._transport.gather(own, shares.places(into, copies), partial(shares.copy_own, into, own))
        shares.copy_into(into, copies)
        return into, came_s

    def _room(
        self, transfer: Transfer, dtypes: Sequence[np.dtype[Any]], lengths: Sequence[int]
    ) -> list[Vector]:
        sizes = list(zip(lengths, dtypes, strict=True))
        if transfer.level == BEFORE_ALL:
            # Parts of other owners are here for one step only, and must be dropped after it.
            return [_aligned(_store(n * dtype.itemsize), n, dtype) for n, dtype in sizes]
        return [self._pools[transfer.name, k].free(n, dtype) for k, (n, dtype) in enumerate(sizes)]

    def _moved_bytes(self, transfer: Transfer, sent: Sequence[Vector], received: Sequence[Vector]) -> int:
        if transfer.kind == "concatenate":
            return sum(vector.nbytes for vector in received)
        if transfer.blocks:
            return sum(self._shares[transfer.name].lengths) * sent[0].itemsize
        wire = _wire(transfer)
        return sum(len(v) * (v.itemsize if wire is None else wire.itemsize) for v in sent)


def _wire(transfer: Transfer) -> np.dtype[Any] | None:
    return None if transfer.wire is None else _WIRES[transfer.wire]


def _giver(queue_in: "queue.SimpleQueue[Sequence[Vector] | None]") -> Callable[..., None]:

    def give(*vectors: Vector) -> None:
        queue_in.put(vectors)

    return give


class _Pool:
    """Memory for received vectors, reused once nothing else references it.

    New memory costs page faults. TensorFlow uses a vector in place, and a step may keep it as the value of a
    variable.
    """

    def __init__(self) -> None:
        self._stores: list[Vector] = []

    def free(self, length: int, dtype: np.dtype[Any]) -> Vector:
        n_bytes = length * dtype.itemsize
        for i in range(len(self._stores)):
            # References by the list and by the call's own argument; vectors have another one.
            if sys.getrefcount(self._stores[i]) == 2:
                if self._stores[i].nbytes < n_bytes + _ALIGNMENT_BYTES:
                    # If lengths change each time, the next vector may be a little longer.
                    self._stores[i] = _store(n_bytes * 5 // 4)
                return _aligned(self._stores[i], length, dtype)
        self._stores.append(_store(n_bytes))
        return _aligned(self._stores[-1], length, dtype)


def _store(n_bytes: int) -> Vector:
    return np.empty(n_bytes + _ALIGNMENT_BYTES, np.uint8)


def _aligned(store: Vector, length: int, dtype: np.dtype[Any]) -> Vector:
    start = -store.ctypes.data % _ALIGNMENT_BYTES
    return store[start : start + length * dtype.itemsize].view(dtype)
