"""Ports that nobody else takes, while somebody listens there and while nobody does."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_port() -> Iterator[int]:
    """A port of 127.0.0.1 that the kernel gives to nobody else; whoever asks for it by number may listen."""
    with socket.socket() as holder:
        # As servers set it too; two sockets may then have one address as long as not both listen.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
