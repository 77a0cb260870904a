"""Connections of a worker to its two neighbours in a ring, each of which has greeted or been greeted."""

import contextlib
import hmac
import socket

CONNECT_S = 60.0
GREETING_S = 5.0


class RingError(Exception):
    """A neighbour in the ring did not come, or has gone."""


def listen(host: str) -> socket.socket:
    """Listen on a free port, for the worker before."""
    return socket.create_server((host, 0), backlog=1)


def address_of(listener: socket.socket) -> str:
    """`host:port` of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"{host}:{port}"


def connected(address: str, greeting: bytes) -> socket.socket:
    """A connection to the next worker, which has been greeted."""
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as unless_greeted:
        try:
            connection = unless_greeted.enter_context(
                socket.create_connection((host, int(port)), timeout=CONNECT_S)
            )
            connection.sendall(greeting)
        except OSError as error:
            raise RingError(f"ring: the worker at {address} must listen, got {error}") from error
        unless_greeted.pop_all()
        return connection


def accepted(listener: socket.socket, greeting: bytes, address: str) -> socket.socket:
    """The connection of the worker before; whoever greets otherwise is sent away."""
    listener.settimeout(CONNECT_S)
    while True:
        try:
            connection, _ = listener.accept()
        except TimeoutError as error:
            raise RingError(
                f"ring: the worker before must come to {address}, got none in {CONNECT_S:g} s"
            ) from error
        with contextlib.suppress(OSError):
            connection.settimeout(GREETING_S)
            if hmac.compare_digest(connection.recv(len(greeting), socket.MSG_WAITALL), greeting):
                return connection
        connection.close()
