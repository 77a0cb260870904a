"""Jobs that connect the processes of a case: ports, TensorFlow's servers, a ring."""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from harness.errors import CaseError
from harness.worker.process.job import JobState
from harness.worker.transport.tcp_ring import Ring, RingError, address_of
from harness.worker.transport.tcp_ring import listen as listen_on

_PORT_WORDS = ("address already in use", "could not start grpc server")


@dataclass(slots=True, frozen=True, kw_only=True)
class Served:
    """TensorFlow's server of this process, and its address for sessions."""

    target: str
    server: object  # kept alive by this reference


@dataclass(slots=True, frozen=True, kw_only=True)
class _Reserved:
    holders: tuple[socket.socket, ...]


@dataclass(slots=True, frozen=True, kw_only=True)
class _Listening:
    listener: socket.socket


@dataclass(slots=True, frozen=True, kw_only=True)
class InRing:
    """This process's place in the ring."""

    ring: Ring


def reserve_ports(state: JobState, n_ports: int, host: str) -> list[str]:
    """Reserve free ports of one of this host's addresses for servers; return `host:port` of each.

    NCCL uses the interface of that address from then on.
    """
    _keep_nccl_on(host)
    holders = tuple(socket.socket() for _ in range(n_ports))
    for holder in holders:
        holder.bind((host, 0))
    state.put(_Reserved(holders=holders))
    return [f"{host}:{holder.getsockname()[1]}" for holder in holders]


def start_server(
    state: JobState, task: int, addresses: Sequence[str], n_devices: int, *, n_waiting: int = 0
) -> None:
    """Start TensorFlow's server of one task on the port reserved for it.

    Args:
        n_waiting: number of threads that block while steps wait for Python. They are added to one per core,
            because requests of peers run on the same threads, and would wait, too.
    Raises:
        CaseError: `port-in-use`, if another process took the port in between.
    """
    from harness.worker.session.tensorflow_settings import n_threads_for_waits
    from harness.worker.session.tensorflow_settings import start_server as start

    n_inter_op = n_threads_for_waits(n_waiting) if n_waiting else 0
    with on_reserved_port(state, task, addresses):
        server = start(task, addresses, n_devices, n_inter_op=n_inter_op)
    state.put(Served(target=server.target, server=server))


def listen(state: JobState, host: str) -> str:
    """Start to listen for the previous worker in the ring; return `host:port`."""
    listener = listen_on(host)
    state.put(_Listening(listener=listener))
    return address_of(listener)


def join_ring(state: JobState, task: int, addresses: Sequence[str], secret: bytes) -> None:
    """Join the ring of all workers, which listen at these addresses and share a secret.

    Raises:
        CaseError: `unreachable`, if a neighbour did not connect.
    """
    try:
        state.put(InRing(ring=Ring(task, addresses, state.get(_Listening).listener, secret)))
    except RingError as error:
        raise CaseError("unreachable", f"worker {task}: {error}", stage="load") from error


def _keep_nccl_on(address: str) -> None:
    """Name the interface for NCCL, which else chooses any, unless the user has named one."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "-1" or "NCCL_SOCKET_IFNAME" in os.environ:
        return
    from harness.worker.counters.network import read_interface

    interface = read_interface(address)
    if interface is not None:
        os.environ["NCCL_SOCKET_IFNAME"] = f"={interface.name}"


@contextmanager
def on_reserved_port(
    state: JobState, task: int, addresses: Sequence[str], *, port: int = 0
) -> Iterator[None]:
    """Release a reserved port for a server that starts in this context.

    Args:
        addresses: addresses of this port on every task. port: index among the reserved ports.
    Raises:
        CaseError: `port-in-use`, if another process took the port in between.
    """
    # TensorFlow refuses to share a port, so the reservation must end just before the server binds it.
    state.get(_Reserved).holders[port].close()
    try:
        yield
    except Exception as error:
        if any(words in str(error).lower() for words in _PORT_WORDS):
            raise CaseError(
                "port-in-use",
                f"worker {task}: another program took its port {addresses[task]}; "
                "repeat the case with --resume",
                stage="run",
            ) from error
        raise
