"""Ring of TCP connections between workers, and sums and gathers through it."""

import contextlib
import hmac
import select
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from strategies.plan.exchanges.collectives import SWAPPED_BYTES

CONNECT_S = 60.0
GREETING_S = 5.0


class RingError(Exception):
    """A neighbour in the ring did not connect, or has gone."""


def listen(host: str) -> socket.socket:
    """Listen on a free port, for the previous worker."""
    return socket.create_server((host, 0), backlog=1)


def address_of(listener: socket.socket) -> str:
    """`host:port` of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"{host}:{port}"


def connected(address: str, greeting: bytes) -> socket.socket:
    """Connection to the next worker, after the greeting."""
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as unless_greeted:
        try:
            connection = unless_greeted.enter_context(
                socket.create_connection((host, int(port)), timeout=CONNECT_S)
            )
            connection.sendall(greeting)
        except OSError as error:
            raise RingError(
                f"ring: cannot connect to the next worker at {address}: {error}; see its log"
            ) from error
        unless_greeted.pop_all()
        return connection


def accepted(listener: socket.socket, greeting: bytes, address: str) -> socket.socket:
    """Connection from the previous worker; other peers are rejected."""
    listener.settimeout(CONNECT_S)
    while True:
        try:
            connection, _ = listener.accept()
        except TimeoutError as error:
            raise RingError(
                f"ring: the previous worker did not connect to {address} within {CONNECT_S:g} s; see its log"
            ) from error
        with contextlib.suppress(OSError):
            connection.settimeout(GREETING_S)
            if hmac.compare_digest(connection.recv(len(greeting), socket.MSG_WAITALL), greeting):
                return connection
        connection.close()


Vector = npt.NDArray[Any]


class Flow:
    """Bytes that one call of the ring sends; they become ready one after the other.

    Attributes:
        ready_bytes: number of bytes that could be sent now.
        came_s: time at which the first bytes of the same call arrived; 0 before.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._rest: list[memoryview] = []
        self._n_unsent = 0
        self.ready_bytes = 0
        self.came_s = 0.0

    def add(self, vectors: Iterable[Vector], *, ready: bool) -> None:
        """Append vectors to the bytes to send.

        Args:
            ready: True if they can be sent once all before them have been; False if they become ready on
                arrival.
        """
        segments = [as_bytes(vector) for vector in vectors]
        n_bytes = sum(map(len, segments))
        self._rest += [segment for segment in segments if len(segment)]
        self._n_unsent += n_bytes
        self.ready_bytes += n_bytes if ready else 0

    def allow(self, n_bytes: int) -> None:
        """Mark more bytes as ready; the last ones to arrive are not forwarded."""
        self.ready_bytes = min(self.ready_bytes + n_bytes, self._n_unsent)

    def send(self) -> None:
        """Send as much as the connection accepts now."""
        while self.ready_bytes:
            segment = self._rest[0]
            try:
                n_bytes = self._connection.send(segment[: self.ready_bytes])
            except BlockingIOError:
                return
            except OSError as error:
                raise RingError(
                    f"ring: the connection to the next worker broke: {error}; see its log"
                ) from error
            self.ready_bytes -= n_bytes
            self._n_unsent -= n_bytes
            self._rest[0] = segment[n_bytes:]
            if not len(self._rest[0]):
                del self._rest[0]


def as_bytes(vector: Vector) -> memoryview:
    """The bytes of a vector, without a copy."""
    return vector.view(np.uint8).data


# Still in a core's cache when scaled or rounded; smaller pieces cost more calls than they save.
VALUES_ADDED_AT_ONCE = 1 << 16


class Scratch:
    """Memory for values of one call at a time, which grows to the largest of them."""

    def __init__(self) -> None:
        self._store = np.empty(0, np.uint8)

    def of(self, length: int, dtype: np.dtype[Any]) -> Vector:
        """Vector in this memory, which the next call overwrites."""
        n_bytes = length * dtype.itemsize
        if self._store.nbytes < n_bytes:
            self._store = np.empty(n_bytes, np.uint8)
        return self._store[:n_bytes].view(dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arrival:
    """Segment that a worker receives.

    Attributes:
        into: destination, with the dtype used on the wire.
        addend: this worker's own values to add; None adds nothing.
        factor: factor of the finished sum.
    """

    into: Vector
    addend: Vector | None = None
    factor: float = 1.0


class Ring:
    """This worker's place in a ring: it sends to the next worker and receives from the previous one.

    A sum takes 2(W−1) rounds of one segment each: W−1 rounds that add up, W−1 that distribute the sums. If
    each worker needs only its own share of the sum, or only gathers, half of them suffice. A worker forwards
    bytes as soon as it has added its own, so that rounds overlap. Two workers sum a short vector in one
    round.

    Source:
        Patarasuk and Yuan 2009, Bandwidth optimal all-reduce algorithms for clusters of workstations.
    Attributes:
        size: number of workers.
    Args:
        rank: rank of this worker.
        addresses: `host:port` of each worker's listener, by rank.
        listener: listening socket of this worker; closed once the previous worker has connected.
        secret: secret of these workers; a peer whose greeting lacks it is rejected.
    Raises:
        RingError: a neighbour did not connect, or belongs to another ring.
    """

    def __init__(self, rank: int, addresses: Sequence[str], listener: socket.socket, secret: bytes) -> None:
        self._rank, self.size = rank, len(addresses)
        greeting = hmac.digest(secret, "\n".join(addresses).encode(), "sha256")
        with contextlib.ExitStack() as unless_complete, listener:
            next_address = addresses[(rank + 1) % self.size]
            self._next = unless_complete.enter_context(connected(next_address, greeting))
            self._previous = unless_complete.enter_context(accepted(listener, greeting, addresses[rank]))
            for connection in (self._next, self._previous):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.settimeout(0.0)
            unless_complete.pop_all()
        self._spares: defaultdict[int, Scratch] = defaultdict(Scratch)

    def sum(
        self, values: Vector, total: Vector, wire: np.dtype[Any] | None = None, factor: float = 1.0
    ) -> float:
        """Sum vectors of one length and type over all workers, which must call this in the same order.

        Args:
            values: vector of this worker.
            total: destination of the sum, bitwise equal on every worker, except the payloads of NaNs.
            wire: dtype of values on the wire; by default their own. Sums are computed in the values' dtype,
                and rounded each time they are sent.
            factor: factor of the sum, applied before rounding.
        Returns:
            Time at which the first bytes came from the previous worker, `time.time()`.
        Raises:
            RingError: a neighbour is gone.
        """
        if self.size == 2 and wire is None and values.nbytes <= SWAPPED_BYTES:
            return self._pass_on(values, [_Arrival(into=total, addend=values, factor=factor)])
        bounds = [len(values) * k // self.size for k in range(self.size + 1)]
        first, *passing, own = [slice(bounds[k], bounds[k + 1]) for k in self._turns()]
        on_wire = total if wire is None else self._spares[0].of(len(total), wire)
        begun = values[first]
        if wire is not None:
            begun = self._spares[1].of(len(begun), wire)
            begun[:] = values[first]
        added = [_Arrival(into=on_wire[segment], addend=values[segment]) for segment in passing]
        complete = _Arrival(into=on_wire[own], addend=values[own], factor=factor)
        handed_on = [_Arrival(into=on_wire[segment]) for segment in (first, *passing)]
        came_s = self._pass_on(begun, [*added, complete, *handed_on])
        if wire is not None:
            total[:] = on_wire
        return came_s

    def scatter(self, shares: Sequence[Vector], total: Vector, factor: float = 1.0) -> float:
        """Sum vectors over all workers, each for one worker; half the rounds of `sum`.

        Args:
            shares: vector for each worker, by rank; of one dtype, and equal lengths on every worker.
            total: destination of the sum of this worker's share.
            factor: factor of the sum.
        Returns:
            See `sum`.
        Raises:
            RingError: a neighbour is gone.
        """
        first, *passing, own = self._turns()
        added = [
            _Arrival(into=self._spares[i].of(len(shares[k]), shares[k].dtype), addend=shares[k])
            for i, k in enumerate(passing)
        ]
        complete = _Arrival(into=total, addend=shares[own], factor=factor)
        return self._pass_on(shares[first], [*added, complete])

    def gather(self, share: Vector, places: Sequence[Vector], meanwhile: Callable[[], None]) -> float:
        """Send this worker's share to all, and receive theirs; the other half of the rounds.

        Args:
            places: destinations of all workers' shares, by rank; this worker's own is not used.
            meanwhile: work to do while the share is being sent.
        Returns:
            See `sum`.
        Raises:
            RingError: a neighbour is gone.
        """
        *others, _ = self._turns()
        return self._pass_on(share, [_Arrival(into=places[k]) for k in others], meanwhile)

    def concatenate(
        self, vectors: Sequence[Vector], room: Callable[[Sequence[int]], list[Vector]]
    ) -> tuple[list[Vector], float]:
        """Concatenate all workers' vectors, by rank.

        Lengths are sent before the vectors in the same stream: W−2 workers forward them before the first
        vector follows; with two workers, nobody does.

        Args:
            vectors: equally many vectors on every worker, each of one dtype on all workers, of any length.
            room: returns destinations for the concatenated vectors, from their lengths.
        Returns:
            Concatenated vectors, and the time at which the first bytes came, `time.time()`.
        Raises:
            RingError: a neighbour is gone.
        """
        *passing, last, own = self._turns()
        lengths = np.empty((self.size, len(vectors)), np.int64)
        lengths[own] = [len(vector) for vector in vectors]
        flow = Flow(self._next)
        flow.add([lengths[own]], ready=True)
        flow.add([lengths[k] for k in passing], ready=False)
        for k in passing:
            self._receive(lengths[k], flow)
        flow.add(vectors, ready=True)
        self._receive(lengths[last], flow)
        wholes, ends = room([int(n) for n in lengths.sum(axis=0)]), lengths.cumsum(axis=0)
        shares = [
            [whole[end - n : end] for whole, end, n in zip(wholes, ends[k], lengths[k], strict=True)]
            for k in range(self.size)
        ]
        flow.add([into for k in passing for into in shares[k]], ready=False)
        for vector, into in zip(vectors, shares[own], strict=True):
            into[:] = vector
        for into in (into for k in (*passing, last) for into in shares[k]):
            self._receive(into, flow)
        return wholes, self._sent(flow)

    def close(self) -> None:
        """Close the connections; a sum in progress in another thread fails."""
        for connection in (self._next, self._previous):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _turns(self) -> list[int]:
        return [(self._rank - k) % self.size for k in range(1, self.size + 1)]

    def _pass_on(
        self, first: Vector, arriving: Sequence[_Arrival], meanwhile: Callable[[], None] | None = None
    ) -> float:
        """Send a vector, then each received one except the last.

        Args:
            meanwhile: work to do while the first vector is being sent.
        Returns:
            Time at which the first bytes came, `time.time()`.
        """
        flow = Flow(self._next)
        flow.add([first], ready=True)
        flow.add([piece.into for piece in arriving[:-1]], ready=False)
        if meanwhile is not None:
            flow.send()
            meanwhile()
        for piece in arriving:
            if piece.addend is None:
                self._receive(piece.into, flow)
            else:
                self._receive_sum(piece.addend, piece.into, piece.factor, flow)
        return self._sent(flow)

    def _sent(self, flow: Flow) -> float:
        """Send the remaining bytes.

        Returns:
            Time at which the first bytes came, `time.time()`.
        """
        while flow.ready_bytes:
            flow.send()
            self._wait(flow, receiving=False)
        return flow.came_s or time.time()

    def _receive_sum(self, values: Vector, total: Vector, factor: float, flow: Flow) -> None:
        """Receive the previous workers' sum of a segment, and add this worker's values.

        Args:
            total: destination of the sum times the factor, in the dtype on the wire.
        """
        into = as_bytes(total)
        came_bytes = done = 0
        while done < len(values):
            came_bytes += self._arrived(into[came_bytes:], flow)
            end = came_bytes // total.itemsize
            for start in range(done, end, VALUES_ADDED_AT_ONCE):
                block = slice(start, min(start + VALUES_ADDED_AT_ONCE, end))
                _add(values[block], total[block], factor)
            flow.allow((end - done) * total.itemsize)
            done = end

    def _receive(self, vector: Vector, flow: Flow) -> None:
        into, done_bytes = as_bytes(vector), 0
        while done_bytes < len(into):
            n_bytes = self._arrived(into[done_bytes:], flow)
            done_bytes += n_bytes
            flow.allow(n_bytes)

    def _arrived(self, into: memoryview, flow: Flow) -> int:
        """Receive at least one byte, and send as much as possible in the meantime."""
        while True:
            flow.send()
            try:
                n_bytes = self._previous.recv_into(into)
            except BlockingIOError:
                self._wait(flow, receiving=True)
                continue
            except OSError as error:
                raise RingError(
                    f"ring: the connection from the previous worker broke: {error}; see its log"
                ) from error
            if n_bytes == 0:
                raise RingError("ring: the previous worker closed its connection; see its log")
            flow.came_s = flow.came_s or time.time()
            return n_bytes

    def _wait(self, flow: Flow, *, receiving: bool) -> None:
        awaited = select.poll()
        if receiving:
            awaited.register(self._previous, select.POLLIN)
        if flow.ready_bytes:
            awaited.register(self._next, select.POLLOUT)
        if receiving or flow.ready_bytes:
            awaited.poll()


def _add(own: Vector, received: Vector, factor: float) -> None:
    """Replace received values by the scaled sum, computed in the dtype of the worker's own values."""
    if received.dtype == own.dtype:
        np.add(own, received, out=received)
        if factor != 1.0:
            received *= factor
        return
    added = own + received.astype(own.dtype)
    if factor != 1.0:
        added *= factor
    received[:] = added
