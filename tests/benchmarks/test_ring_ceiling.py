"""Link use of the workers' ring: a sum compared with sending and receiving the same bytes."""

import multiprocessing
import os
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from harness.worker.transport.tcp_ring import Ring, address_of, listen

N_VALUES = 4_412_426  # of wide-mlp, 17.6 MB
N_SUMS = 15
TIMEOUT_S = 120.0


def sums(rank: int, addresses: list[str], listener: socket.socket) -> Callable[[], None]:
    ring = Ring(rank, addresses, listener, b"secret")
    values = np.ones(N_VALUES, np.float32)
    total = np.empty_like(values)
    return lambda: ring.sum(values, total)


def raw_bytes(rank: int, addresses: list[str], listener: socket.socket) -> Callable[[], None]:
    """Send and receive the bytes of a sum of two workers, both ways at once, in one blocking call each."""
    host, _, port = addresses[1 - rank].rpartition(":")
    outgoing = socket.create_connection((host, int(port)))
    incoming, _ = listener.accept()
    outgoing.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sent, received = np.ones(N_VALUES, np.float32).data.cast("B"), bytearray(4 * N_VALUES)

    def exchange() -> None:
        sender = threading.Thread(target=outgoing.sendall, args=(sent,))
        sender.start()
        view = memoryview(received)
        while view:
            view = view[incoming.recv_into(view) :]
        sender.join()

    return exchange


def worker(
    kind: Callable[..., Callable[[], None]],
    rank: int,
    addresses: list[str],
    listener: socket.socket,
    answer: Connection,
) -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    work = kind(rank, addresses, listener)
    seconds = []
    for _ in range(N_SUMS):
        started_s = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started_s)
    answer.send(statistics.median(seconds))


def two_workers(kind: Callable[..., Callable[[], None]]) -> float:
    """Median seconds of the slower worker."""
    spawn = multiprocessing.get_context("fork")
    listeners = [listen("127.0.0.1") for _ in range(2)]
    addresses = [address_of(listener) for listener in listeners]
    pipes = [spawn.Pipe(duplex=False) for _ in range(2)]
    processes = [
        spawn.Process(target=worker, args=(kind, rank, addresses, listeners[rank], pipes[rank][1]))
        for rank in range(2)
    ]
    try:
        for process in processes:
            process.start()
        assert all(receiving.poll(TIMEOUT_S) for receiving, _ in pipes)
        return max(receiving.recv() for receiving, _ in pipes)
    finally:
        for process in processes:
            process.kill()
            process.join()
        for listener in listeners:
            listener.close()


@pytest.mark.skipif(sys.platform != "linux", reason="pins processes to cores")
def test_a_sum_beside_the_bytes_alone(
    benchmark: BenchmarkFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds: dict[str, list[float]] = {"sum": [], "bytes": []}

    def both() -> None:
        seconds["sum"].append(two_workers(sums))
        seconds["bytes"].append(two_workers(raw_bytes))

    benchmark.pedantic(both, rounds=3)
    summed, alone = (statistics.median(seconds[kind]) for kind in ("sum", "bytes"))
    benchmark.extra_info.update(sum_s=summed, bytes_s=alone)
    with capsys.disabled():
        sys.stdout.write(
            f"\nring: {4 * N_VALUES / 1e6:.1f} MB summed over two workers in {summed * 1e3:.1f} ms; "
            f"the same bytes, sent and received alone, take {alone * 1e3:.1f} ms ({summed / alone:.2f}x)\n"
        )
