"""Rates of links between workers: one sends, another measures."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from harness.errors import CaseError
from harness.worker.process.job import JobState

Place: TypeAlias = tuple[str, int]

_PIECE_BYTES = 256 * 1024
_RECEIVED = struct.Struct("128xQ")  # tcpi_bytes_received in the kernel's struct tcp_info
_LEAD_S = 0.3
_WAIT_S = 10.0  # for another worker to connect, and for more bytes to arrive


@dataclass(slots=True, frozen=True, kw_only=True)
class _Awaiting:
    listener: socket.socket


def await_sender(state: JobState, host: str) -> Place:
    """Listen for senders at one of this host's addresses; return the address with its port."""
    listener = socket.create_server((host, 0))
    listener.settimeout(_WAIT_S)
    state.put(_Awaiting(listener=listener))
    return host, int(listener.getsockname()[1])


def await_no_more(state: JobState) -> None:
    """Close the listener of `await_sender`."""
    state.get(_Awaiting).listener.close()


def transfer(state: JobState, receiver: Place | None, window: tuple[int, float] | None) -> float | None:
    """Send as fast as possible to a worker that measures, measure, or do neither.

    Args:
        receiver: address to send to; None to send nothing.
        window: bytes to receive before the window, which empty all token buckets, and its seconds; None
            measures nothing.
    Returns:
        Megabits of TCP payload per second; None without a window.
    Raises:
        CaseError: `unreachable`.
    """
    if receiver is not None:
        with _carrying(receiver[0]):
            _send(receiver)
    if window is None:
        return None
    listener = state.get(_Awaiting).listener
    with _carrying(listener.getsockname()[0]):
        incoming, _ = listener.accept()
        # The sender stops when the receiver has gone.
        with incoming:
            incoming.settimeout(_WAIT_S)
            return _mbit(incoming, *window)


@contextlib.contextmanager
def _carrying(address: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CaseError(
            "unreachable",
            f"the link to {address} broke while its rate was measured: {error}; repeat with --resume",
            stage="provision",
        ) from error


def _send(receiver: Place) -> None:
    piece = bytes(_PIECE_BYTES)
    with socket.create_connection(receiver, timeout=_WAIT_S) as out, contextlib.suppress(OSError):
        while True:
            out.sendall(piece)


def _mbit(incoming: socket.socket, lead_bytes: int, window_s: float) -> float:
    lead_end_s = time.monotonic() + _LEAD_S
    while _received_bytes(incoming) < lead_bytes or time.monotonic() < lead_end_s:
        _drain(incoming)
    first_bytes, first_s = _received_bytes(incoming), time.monotonic()
    # So long a stall of the machine says nothing about the link.
    while time.monotonic() < first_s + window_s or _received_bytes(incoming) == first_bytes:
        _drain(incoming)
    n_bytes, last_s = _received_bytes(incoming) - first_bytes, time.monotonic()
    return n_bytes * 8 / 1e6 / (last_s - first_s)


def _drain(incoming: socket.socket) -> None:
    if not incoming.recv(_PIECE_BYTES):
        raise ConnectionError("the sender has left")


def _received_bytes(incoming: socket.socket) -> int:
    """Bytes received by the kernel; a busy process reads them much later."""
    facts = incoming.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED.size)
    (n_bytes,) = _RECEIVED.unpack(facts)
    return int(n_bytes)
