"""The port of `/metrics`, taken before a command leaves the host's network."""

import socket

from harness.errors import UsageError

_HOST = "127.0.0.1"


def listen(port: int) -> socket.socket:
    """Listen on a port of this host's loopback.

    Raises:
        UsageError: the port cannot be had.
    """
    try:
        return socket.create_server((_HOST, port))
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"must be a free port of {_HOST}, got {port} ({error}); choose another one", field="metrics_port"
        ) from error
