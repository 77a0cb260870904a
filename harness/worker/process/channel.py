"""Whole messages over a stream socket: an 8-byte length, then the bytes, with one deadline for all of it."""

import socket
import struct
import time

_LENGTH = struct.Struct("<Q")


class ChannelClosedError(Exception):
    """The other end is gone: its process ended, or closed the socket."""


def send_message(channel: socket.socket, payload: bytes, *, deadline_s: float | None = None) -> None:
    """Send one message.

    Args:
        deadline_s: on `time.monotonic()`; None waits for ever.
    Raises:
        ChannelClosedError: the other end is gone.
        TimeoutError: it did not take the message in time.
    """
    _set_timeout(channel, deadline_s)
    try:
        channel.sendall(_LENGTH.pack(len(payload)))
        channel.sendall(payload)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise ChannelClosedError from error


def receive_message(channel: socket.socket, *, deadline_s: float | None = None) -> bytearray:
    """Wait for one message; arguments and errors as in `send_message`."""
    (length,) = _LENGTH.unpack(_receive_exactly(channel, _LENGTH.size, deadline_s))
    return _receive_exactly(channel, length, deadline_s)


def _receive_exactly(channel: socket.socket, n_bytes: int, deadline_s: float | None) -> bytearray:
    buffer = bytearray(n_bytes)
    view = memoryview(buffer)
    while view:
        _set_timeout(channel, deadline_s)
        try:
            n_received = channel.recv_into(view)
        except ConnectionResetError as error:
            raise ChannelClosedError from error
        if n_received == 0:
            raise ChannelClosedError
        view = view[n_received:]
    return buffer


def _set_timeout(channel: socket.socket, deadline_s: float | None) -> None:
    if deadline_s is None:
        channel.settimeout(None)
        return
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        # A timeout of zero would mean "do not block" to the socket.
        raise TimeoutError
    channel.settimeout(left_s)
