""" """

import hmac
import select
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from ports import kept_port

from harness.worker.transport.tcp_ring import Ring, RingError, address_of, listen

HOST = "127.0.0.1"
SECRET = b"of these workers"
TIMEOUT_S = 30


@contextmanager
def rings(n, before_any=lambda addresses: None, before_first=lambda: None):
    listeners = [listen(HOST) for _ in range(n)]
    addresses = [address_of(listener) for listener in listeners]
    before_any(addresses)

    def joined(rank):
        if rank == 0:
            before_first()
        return Ring(rank, addresses, listeners[rank], SECRET)

    with ThreadPoolExecutor(n) as threads:
        rings = list(threads.map(joined, range(n), timeout=TIMEOUT_S))
        try:
            yield rings, threads
        finally:
            for ring in rings:
                ring.close()


def summed(result, threads, values):
    totals = [np.empty_like(v) for v in values]
    list(threads.map(Ring.sum, result, values, totals, timeout=TIMEOUT_S))
    return totals


@pytest.mark.parametrize("n_workers", [2, 3, 5])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "float16"])
def test_every_worker_gets_the_sum_to_the_same_bits(n_workers, dtype):
    random = np.random.default_rng(n_workers)
    with rings(n_workers) as (result, threads):
        # Shorter than the workers are many, longer than what two give each other whole, a multiple of none.
        for length in (0, 1, 2, 7, 1_500_007):
            values = [(100 * random.standard_normal(length)).astype(dtype) for _ in range(n_workers)]
            totals = summed(result, threads, values)
            for total in totals[1:]:
                assert total.tobytes() == totals[0].tobytes()
            expected = np.sum(values, axis=0, dtype=np.float64)
            error = np.abs(totals[0] - expected).max(initial=0.0)
            precise = dtype == "int64"
            assert error <= (0 if precise else 4 * n_workers * 300 * np.finfo(dtype).eps)


@pytest.mark.parametrize("n_workers", [2, 3, 5])
@pytest.mark.parametrize("wire", [np.float16, ml_dtypes.bfloat16], ids=["half", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_sum_in_a_smaller_type_is_rounded_once_for_each_worker(n_workers, wire, dtype):
    random = np.random.default_rng(n_workers)
    wire = np.dtype(wire)
    with rings(n_workers) as (result, threads):
        for length in (0, 1, 7, 1_500_007):
            values = [random.standard_normal(length).astype(dtype) for _ in range(n_workers)]
            totals = [np.empty_like(v) for v in values]
            kinds = [wire] * n_workers
            list(threads.map(Ring.sum, result, values, totals, kinds, timeout=TIMEOUT_S))
            for total in totals[1:]:
                assert total.tobytes() == totals[0].tobytes()
            np.testing.assert_array_equal(totals[0], totals[0].astype(wire).astype(dtype))
            roundoff = float(ml_dtypes.finfo(wire).eps) / 2
            allowed = ((1 + roundoff) ** n_workers - 1) * np.sum(np.abs(values), axis=0)
            error = np.abs(totals[0] - np.sum(values, axis=0))
            assert (error <= allowed * (1 + 1e-3) + 1e-6).all()
            assert length < 7 or error.max() > 0


def test_a_sum_is_multiplied_before_it_is_rounded_for_its_way():
    random, wire, factor = np.random.default_rng(0), np.dtype(ml_dtypes.bfloat16), np.float32(1 / 3)
    own, other = values = [random.standard_normal(1001).astype(np.float32) for _ in range(2)]
    totals = [np.empty_like(v) for v in values]
    with rings(2) as (result, threads):
        list(threads.map(Ring.sum, result, values, totals, [wire] * 2, [factor] * 2, timeout=TIMEOUT_S))

    def weighed(sender, adder):
        return ((adder + sender.astype(wire).astype(np.float32)) * factor).astype(wire).astype(np.float32)

    half = 1001 // 2
    expected = [*weighed(other[:half], own[:half]), *weighed(own[half:], other[half:])]
    np.testing.assert_array_equal(totals, [expected] * 2)


@pytest.mark.parametrize("n_workers", [2, 3, 5])
def test_a_complete_sum_is_multiplied_once(n_workers):
    length = 700_001  # longer than what is added at once
    values = [np.full(length, rank + 1.0, np.float32) for rank in range(n_workers)]
    expected = 0.5 * n_workers * (n_workers + 1) / 2
    with rings(n_workers) as (result, threads):
        totals = [np.empty_like(v) for v in values]
        as_they_are, factors = [None] * n_workers, [0.5] * n_workers
        list(threads.map(Ring.sum, result, values, totals, as_they_are, factors, timeout=TIMEOUT_S))
        np.testing.assert_array_equal(totals, expected)
        shares = [[value] * n_workers for value in values]
        totals = [np.empty_like(v) for v in values]
        list(threads.map(Ring.scatter, result, shares, totals, [0.5] * n_workers, timeout=TIMEOUT_S))
        np.testing.assert_array_equal(totals, expected)


def sent_by(ring):
    sent = bytearray()

    class Seen:
        def __init__(self, connection):
            self.connection = connection

        def send(self, part):
            n_bytes = self.connection.send(part)
            sent.extend(part[:n_bytes])
            return n_bytes

        def __getattr__(self, name):
            return getattr(self.connection, name)

    ring._next = Seen(ring._next)
    return sent


def test_a_sum_in_a_smaller_type_sends_its_bytes():
    with rings(2) as (result, threads):
        sent = sent_by(result[0])
        values, totals = [np.ones(1000, np.float32)] * 2, [np.empty(1000, np.float32) for _ in range(2)]
        list(threads.map(Ring.sum, result, values, totals, [np.dtype(np.float16)] * 2, timeout=TIMEOUT_S))
        assert len(sent) == 2 * 1000
        np.testing.assert_array_equal(totals[1], 2.0)


def test_two_workers_give_each_other_a_short_vector_whole_and_half_of_a_long_one_and_its_sum():
    values = [np.arange(1000.0), np.ones(1000)]
    with rings(2) as (result, threads):
        sent = sent_by(result[0])
        summed(result, threads, values)
        assert sent == values[0].tobytes()
        sent.clear()
        long = [np.tile(v, 1000) for v in values]
        total, _ = summed(result, threads, long)
        assert len(sent) == total.nbytes
        np.testing.assert_array_equal(np.frombuffer(sent)[500_000:], total[:500_000])


def concatenated_by(ring, vectors):
    dtypes = [v.dtype for v in vectors]
    wholes, came_s = ring.concatenate(vectors, lambda lengths: list(map(np.empty, lengths, dtypes)))
    assert came_s <= time.time()
    return wholes


def concatenated(result, threads, given_by):
    """Vectors that each worker gets from those that each gives."""
    return list(threads.map(concatenated_by, result, given_by, timeout=TIMEOUT_S))


DTYPES = st.sampled_from(["float32", "float64", "int64", "int32", "float16", ml_dtypes.bfloat16, "bool"])


@pytest.fixture(scope="module", params=[2, 3, 5])
def workers(request):
    with rings(request.param) as result:
        yield result


@settings(max_examples=30, deadline=None)
@given(data=st.data(), dtypes=st.lists(DTYPES.map(np.dtype), min_size=1, max_size=4))
def test_vectors_of_all_follow_one_another_by_rank(workers, data, dtypes):
    """Vectors of any lengths and types arrive bit for bit, one call right after the other."""
    result, threads = workers
    lengths = st.integers(0, 40)

    def vector(dtype):
        words = data.draw(arrays(np.uint8, data.draw(lengths) * dtype.itemsize))
        return words.view(dtype)

    given_by = [[vector(dtype) for dtype in dtypes] for _ in result]
    for wholes in concatenated(result, threads, given_by):
        for k, whole in enumerate(wholes):
            assert whole.dtype == dtypes[k]
            assert whole.tobytes() == b"".join(vectors[k].tobytes() for vectors in given_by)


@pytest.mark.parametrize("silent", [(), (0,), (1,), (0, 1, 2)])
def test_long_vectors_and_workers_that_have_none(silent):
    random = np.random.default_rng(0)
    with rings(3) as (result, threads):
        n = [0 if k in silent else 700_001 * (k + 1) for k in range(3)]
        given_by = [[random.standard_normal(2 * n[k]), np.arange(n[k]), np.ones(1)] for k in range(3)]
        expected = [np.concatenate(parts) for parts in zip(*given_by, strict=True)]
        for wholes in concatenated(result, threads, given_by):
            for whole, vector in zip(wholes, expected, strict=True):
                np.testing.assert_array_equal(whole, vector)
        # What comes next in the same streams is read from where it begins.
        np.testing.assert_array_equal(summed(result, threads, [np.ones(4)] * 3)[2], [3.0] * 4)


def test_two_workers_give_their_vectors_before_they_know_the_lengths_of_the_other():
    """Lengths cost no round of their own: all that a worker has is under way before anything comes."""
    with rings(2) as (result, threads):
        values = np.arange(100.0)
        early = threads.submit(concatenated_by, result[0], [values])
        expected = np.int64(100).tobytes() + values.tobytes()
        deadline_s, peeked = time.monotonic() + TIMEOUT_S, b""
        while len(peeked) < len(expected) and time.monotonic() < deadline_s:
            select.select([result[1]._previous], [], [], TIMEOUT_S)
            peeked = result[1]._previous.recv(2 * len(expected), socket.MSG_PEEK)
        assert peeked == expected
        np.testing.assert_array_equal(concatenated_by(result[1], [np.ones(0)])[0], values)
        np.testing.assert_array_equal(early.result(TIMEOUT_S)[0], values)


@pytest.mark.parametrize("leaver", [0, 1, 2])
def test_a_worker_that_goes_between_lengths_and_vectors_ends_the_calls_of_the_others(leaver):
    def give_up(ring):
        def room(lengths):
            ring.close()
            raise RingError("ring: this worker gives up")

        return room

    vectors = [np.ones(1_000_000)]
    with rings(3) as (result, threads):
        calls = [
            threads.submit(ring.concatenate, vectors, give_up(ring))
            if k == leaver
            else threads.submit(concatenated_by, ring, vectors)
            for k, ring in enumerate(result)
        ]
        with pytest.raises(
            RingError,
            match=r"ring: the (previous worker closed|connection from the previous worker broke)",
        ):
            calls[(leaver + 1) % 3].result(TIMEOUT_S)
        # Whoever has no part with the one that went is told by a neighbour that gives up in turn.
        for ring in result:
            ring.close()
        wait(calls, timeout=TIMEOUT_S)
        assert all(isinstance(call.exception(), RingError) for call in calls)


def test_what_a_worker_gives_is_left_as_it_is():
    with rings(2) as (result, threads):
        for length in (1000, 1_000_000):  # given whole, and in turns
            values = [np.arange(float(length)), np.ones(length)]
            for v in values:
                v.flags.writeable = False
            np.testing.assert_array_equal(summed(result, threads, values)[1], np.arange(float(length)) + 1)


def test_a_sum_tells_when_the_first_of_the_worker_before_came():
    with rings(2) as (result, threads):
        early = threads.submit(result[0].sum, np.ones(1000), np.empty(1000))
        begun_s = time.time()
        result[1].sum(np.ones(1000), np.empty(1000))
        assert begun_s <= early.result(TIMEOUT_S) <= time.time()


@pytest.mark.parametrize("leaver", [0, 1, 2])
def test_a_worker_that_goes_ends_the_sums_of_the_others(leaver):
    values, totals = np.ones(1_000_000), np.empty(1_000_000)
    with rings(3) as (result, threads):
        waiting = [
            threads.submit(ring.sum, values, totals.copy()) for k, ring in enumerate(result) if k != leaver
        ]
        result[leaver].close()
        done, _ = wait(waiting[:1] if leaver == 2 else waiting[-1:], timeout=TIMEOUT_S)
        for future in done:
            with pytest.raises(
                RingError,
                match=r"ring: the (previous worker closed|connection (to|from) the \w+ worker broke)",
            ):
                future.result()
        assert done
        # Whoever has no part with the one that went is told by a neighbour that gives up in turn.
        for ring in result:
            ring.close()
        wait(waiting, timeout=TIMEOUT_S)
        assert all(isinstance(future.exception(), RingError) for future in waiting)


def leave(stranger):
    """Reset the connection."""
    stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stranger.close()


@pytest.mark.parametrize(
    "behave",
    [lambda s: s.sendall(b"x" * 32), lambda s: None, leave],
    ids=["greets otherwise", "says nothing", "leaves at once"],
)
def test_a_stranger_does_not_get_in(monkeypatch, behave):
    monkeypatch.setattr("harness.worker.transport.tcp_ring.GREETING_S", 0.2)
    stranger = socket.socket()

    def knock(addresses):
        host, _, port = addresses[1].rpartition(":")
        stranger.connect((host, int(port)))
        behave(stranger)

    def see_it_sent_away():
        if stranger.fileno() >= 0:
            assert stranger.recv(1) == b""
        # Who belongs there has all the time that there is.
        monkeypatch.undo()

    with stranger, rings(2, knock, see_it_sent_away) as (result, threads):
        totals = summed(result, threads, [np.ones(3), np.ones(3)])
    np.testing.assert_array_equal(totals[0], [2, 2, 2])


def test_who_knows_the_addresses_alone_does_not_get_in(monkeypatch):
    monkeypatch.setattr("harness.worker.transport.tcp_ring.CONNECT_S", 0.5)
    listener = listen(HOST)
    with listen(HOST) as other, socket.socket() as stranger:
        addresses = [address_of(listener), address_of(other)]
        host, _, port = addresses[0].rpartition(":")
        stranger.connect((host, int(port)))
        stranger.sendall(hmac.digest(b"another secret", "\n".join(addresses).encode(), "sha256"))
        with pytest.raises(RingError, match="the previous worker did not connect"):
            Ring(0, addresses, listener, SECRET)


def test_a_neighbour_that_does_not_listen():
    listener = listen(HOST)
    with kept_port() as port:
        addresses = [address_of(listener), f"{HOST}:{port}"]
        with pytest.raises(RingError, match=f"cannot connect to the next worker at {addresses[1]}: "):
            Ring(0, addresses, listener, SECRET)
    assert listener.fileno() == -1


def test_a_neighbour_that_does_not_come(monkeypatch):
    monkeypatch.setattr("harness.worker.transport.tcp_ring.CONNECT_S", 0.2)
    with listen(HOST) as other:
        listener = listen(HOST)
        with pytest.raises(
            RingError, match=r"the previous worker did not connect to 127.0.0.1:\d+ within 0.2 s"
        ):
            Ring(0, [address_of(listener), address_of(other)], listener, SECRET)
