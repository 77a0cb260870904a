"""Sums over all workers through a ring of TCP connections."""

import contextlib
import hmac
import select
import socket
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.worker.transport.ring_connections import RingError, accepted, connected

Vector = npt.NDArray[Any]

# What is received is added while it is still in a cache; smaller chunks cost more calls than they save.
CHUNK_BYTES = 1 << 20


class Ring:
    """This worker's place in a ring: it sends to the next worker and receives from the one before.

    A sum takes 2(W−1) rounds of a segment each: W−1 that add up, W−1 that hand the sums on; where each worker
    needs its own share of it alone, or has something for all, one half of them. What a worker receives it
    sends on as soon as it has added its own, so that rounds flow into each other.

    Source:
        Patarasuk and Yuan 2009, Bandwidth optimal all-reduce algorithms for clusters of workstations.
    Args:
        rank: this worker's place.
        addresses: `host:port` where each worker listens, by rank.
        listener: where this worker listens; closed once the worker before has come.
        secret: that only these workers know: who greets without it is no neighbour.
    Raises:
        RingError: a neighbour did not come, or is of another ring.
    """

    def __init__(self, rank: int, addresses: Sequence[str], listener: socket.socket, secret: bytes) -> None:
        self._rank, self._size = rank, len(addresses)
        greeting = hmac.digest(secret, "\n".join(addresses).encode(), "sha256")
        with contextlib.ExitStack() as unless_complete, listener:
            next_address = addresses[(rank + 1) % self._size]
            self._next = unless_complete.enter_context(connected(next_address, greeting))
            self._previous = unless_complete.enter_context(accepted(listener, greeting, addresses[rank]))
            for connection in (self._next, self._previous):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.settimeout(0.0)
            unless_complete.pop_all()
        self._chunk = np.empty(CHUNK_BYTES, np.uint8)
        self._spares: list[Vector] = []

    def sum(self, values: Vector, total: Vector, wire: np.dtype[Any] | None = None) -> float:
        """Sum vectors of one length and type over all workers, each of which must come to this sum in turn.

        Args:
            values: this worker's.
            total: takes the sum, the same to the last bit on every worker.
            wire: type that values have on their way, their own unless given. Sums are made in the values'
                type and rounded each time that they are sent.
        Returns:
            when the first bytes came from the worker before, `time.time()`.
        Raises:
            RingError: a neighbour has gone.
        """
        bounds = [len(values) * k // self._size for k in range(self._size + 1)]
        first, *others = [slice(bounds[k], bounds[k + 1]) for k in self._turns()]
        on_wire = total if wire is None else self._spare(0, len(total), wire)
        begun = values[first]
        if wire is not None:
            begun = self._spare(1, len(begun), wire)
            begun[:] = values[first]
        added = [(values[segment], on_wire[segment]) for segment in others]
        handed_on = [(None, on_wire[segment]) for segment in (first, *others[:-1])]
        came_s = self._pass_on(begun, [*added, *handed_on])
        if wire is not None:
            total[:] = on_wire
        return came_s

    def scatter(self, shares: Sequence[Vector], total: Vector) -> float:
        """Sum vectors over all workers, each for the worker whose share it is; half of the rounds of a sum.

        Args:
            shares: what this worker has for each, by rank; of one type, and as long on every worker.
            total: takes the sum of this worker's own share.
        Returns:
            as `sum`.
        Raises:
            RingError: a neighbour has gone.
        """
        first, *passing, own = self._turns()
        added = [(shares[k], self._spare(i, len(shares[k]), shares[k].dtype)) for i, k in enumerate(passing)]
        return self._pass_on(shares[first], [*added, (shares[own], total)])

    def gather(self, share: Vector, others: Sequence[Vector]) -> float:
        """Give all workers this one's share, and take theirs; the other half.

        Args:
            others: take the shares of all workers, by rank; this worker's place stays as it is.
        Returns:
            as `sum`.
        Raises:
            RingError: a neighbour has gone.
        """
        *_, own = turns = self._turns()
        return self._pass_on(share, [(None, others[k]) for k in turns if k != own])

    def close(self) -> None:
        """End the connections; a sum under way in another thread fails."""
        for connection in (self._next, self._previous):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _turns(self) -> list[int]:
        """Whose shares pass this worker while they are added up: its own comes last, to stay."""
        return [(self._rank - k) % self._size for k in range(1, self._size + 1)]

    def _spare(self, number: int, length: int, dtype: np.dtype[Any]) -> Vector:
        """Memory for what is sent on at once, used again in the next call."""
        n_bytes = length * dtype.itemsize
        while len(self._spares) <= number:
            self._spares.append(np.empty(0, np.uint8))
        if self._spares[number].nbytes < n_bytes:
            self._spares[number] = np.empty(n_bytes, np.uint8)
        return self._spares[number][:n_bytes].view(dtype)

    def _pass_on(self, first: Vector, arriving: Sequence[tuple[Vector | None, Vector]]) -> float:
        """Send a vector, then each that came in but for the last.

        Args:
            arriving: what is added to each, None for nothing, and where it goes.
        Returns:
            when the first bytes came, `time.time()`.
        """
        sent = [first, *(into for _, into in arriving[:-1])]
        flow = _Flow(self._next, [_bytes(vector) for vector in sent])
        for values, into in arriving:
            if values is None:
                self._receive(_bytes(into), flow)
            else:
                self._receive_addend(values, into, flow)
        while flow.ready_bytes:
            flow.send()
            self._wait(flow, receiving=False)
        return flow.came_s or time.time()

    def _receive_addend(self, values: Vector, total: Vector, flow: "_Flow") -> None:
        """Receive what the workers before have summed of a segment, and add this worker's values.

        Args:
            total: takes the sum, in the type that it has on its way.
        """
        width = total.itemsize
        done = held_bytes = 0
        while done < len(values):
            wanted_bytes = min(len(self._chunk) // width, len(values) - done) * width
            held_bytes += self._arrived(self._chunk.data[held_bytes:wanted_bytes], flow)
            n = held_bytes // width
            addend = self._chunk[: n * width].view(total.dtype)
            if total.dtype == values.dtype:
                np.add(values[done : done + n], addend, out=total[done : done + n])
            else:
                total[done : done + n] = values[done : done + n] + addend.astype(values.dtype)
            done += n
            flow.allow(n * width)
            rest = bytes(self._chunk[n * width : held_bytes])
            held_bytes = len(rest)
            self._chunk[:held_bytes] = np.frombuffer(rest, np.uint8)

    def _receive(self, into: memoryview, flow: "_Flow") -> None:
        done_bytes = 0
        while done_bytes < len(into):
            n_bytes = self._arrived(into[done_bytes : done_bytes + CHUNK_BYTES], flow)
            done_bytes += n_bytes
            flow.allow(n_bytes)

    def _arrived(self, into: memoryview, flow: "_Flow") -> int:
        """Bytes received, at least one; meanwhile goes out what can."""
        while True:
            flow.send()
            try:
                n_bytes = self._previous.recv_into(into)
            except BlockingIOError:
                self._wait(flow, receiving=True)
                continue
            except OSError as error:
                raise RingError(f"ring: the worker before must stay, got {error}") from error
            if n_bytes == 0:
                raise RingError("ring: the worker before must stay, got the end of its connection")
            flow.came_s = flow.came_s or time.time()
            return n_bytes

    def _wait(self, flow: "_Flow", *, receiving: bool) -> None:
        awaited = select.poll()
        if receiving:
            awaited.register(self._previous, select.POLLIN)
        if flow.ready_bytes:
            awaited.register(self._next, select.POLLOUT)
        if receiving or flow.ready_bytes:
            awaited.poll()


class _Flow:
    """What one sum sends, as one stream of bytes of which more and more are ready.

    Attributes:
        ready_bytes: that could go out now.
        came_s: when the first bytes of the same sum came in; 0 before.
    """

    def __init__(self, connection: socket.socket, segments: Sequence[memoryview]) -> None:
        self._connection = connection
        self._rest = [segment for segment in segments if len(segment)]
        self._n_unsent = sum(map(len, segments))
        self.ready_bytes = len(segments[0])
        self.came_s = 0.0

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


def _bytes(vector: Vector) -> memoryview:
    return vector.view(np.uint8).data
