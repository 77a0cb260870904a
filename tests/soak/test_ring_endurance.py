"""Many sums of any length over one ring: always right, and memory stays."""

import resource
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from harness.worker.transport.tcp_ring import Ring, address_of, listen

N_WORKERS = 4
N_SUMS = 20_000
MOST_GROWTH_KIB = 64 << 10


def test_many_sums() -> None:
    listeners = [listen("127.0.0.1") for _ in range(N_WORKERS)]
    addresses = [address_of(listener) for listener in listeners]
    lengths = np.random.default_rng(0).integers(0, 40_000, N_SUMS)
    with ThreadPoolExecutor(N_WORKERS) as threads:
        rings = list(threads.map(lambda k: Ring(k, addresses, listeners[k], b"secret"), range(N_WORKERS)))
        before_kib = 0
        for number, length in enumerate(lengths):
            values = [np.arange(length, dtype=np.float32) + rank + number for rank in range(N_WORKERS)]
            totals = [np.empty_like(v) for v in values]
            list(threads.map(Ring.sum, rings, values, totals))
            expected = np.sum(values, axis=0)
            assert all(np.array_equal(total, expected) for total in totals)
            if number == N_SUMS // 10:
                before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for ring in rings:
            ring.close()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < MOST_GROWTH_KIB
