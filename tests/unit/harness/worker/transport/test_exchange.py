import queue
import time
import weakref

import numpy as np
import pytest

from harness.worker.transport.exchange import Exchange
from harness.worker.transport.tcp_ring import RingError
from strategies.ir.train_graph import BEFORE_ALL, Block, Transfer

TIMEOUT_S = 30
FIRST, SECOND = Transfer(name="first"), Transfer(name="second")


class Doubling:
    """A ring of two workers that give the same vectors."""

    size = 2

    def __init__(self):
        self.lengths = []
        self.closed = queue.SimpleQueue()

    def sum(self, values, total, wire=None, factor=1.0):
        if len(values) == 13:
            raise RingError("the next worker has gone")
        self.lengths.append(len(values))
        np.multiply(values, 2 * factor, out=total)
        return time.time()

    def scatter(self, shares, total, factor=1.0):
        np.multiply(shares[0], 2 * factor, out=total)
        return time.time()

    def gather(self, share, places, meanwhile):
        meanwhile()
        places[1].fill(share[0])
        return time.time()

    def concatenate(self, vectors, room):
        wholes = room([2 * len(vector) for vector in vectors])
        for whole, vector in zip(wholes, vectors, strict=True):
            whole[:] = np.concatenate([vector, vector])
        return wholes, time.time()

    def close(self):
        self.closed.put(True)


@pytest.fixture
def transport():
    return Doubling()


@pytest.fixture
def exchange(transport):
    exchange = Exchange(transport, [FIRST, SECOND], 0)
    yield exchange
    exchange.close()
    assert transport.closed.get(timeout=TIMEOUT_S)


@pytest.fixture
def calls(exchange):
    return exchange.calls()


def give(calls, transfer, length):
    calls[transfer.given_token](np.ones(length, np.float32))


def take(calls, transfer):
    (total,) = calls[transfer.taken_token]()
    return total


def test_sums_are_made_in_one_order_however_vectors_come(calls, transport):
    for _ in range(3):
        give(calls, SECOND, 2)
        give(calls, FIRST, 1)
        np.testing.assert_array_equal(take(calls, SECOND), [2, 2])
        np.testing.assert_array_equal(take(calls, FIRST), [2])
    assert transport.lengths == [1, 2] * 3


def test_of_shares_comes_what_has_something_in_it(transport):
    scatter = Transfer(name="scatter", kind="scatter", blocks=(Block(sizes=(3,), tasks=(0,)),))
    other = Transfer(name="other", kind="scatter", blocks=(Block(sizes=(3,), tasks=(1,)),))
    own, others = Block(sizes=(3,), tasks=(0,), vector=None), Block(sizes=(2,), tasks=(1,))
    gather = Transfer(name="gather", kind="gather", blocks=(own, others))
    exchange = Exchange(transport, [other, scatter, gather], 0)
    calls, exchange.seen = exchange.calls(), []
    full = np.ones(3, np.float32)
    for _ in range(2):
        calls[gather.given_token](full)
        calls[scatter.given_token](full)
        calls[other.given_token](full)  # nobody takes what does not come
        np.testing.assert_array_equal(take(calls, scatter), [2, 2, 2])
        np.testing.assert_array_equal(take(calls, gather), [1, 1])
    exchange.close()
    assert [m.n_bytes for m in exchange.seen] == [12, 12, 20] * 2


@pytest.mark.parametrize("level", [BEFORE_ALL, 1])
def test_contiguous_shares_come_as_one_vector_with_what_this_worker_gave(transport, level):
    whole = Block(sizes=(3, 2), tasks=(0, 1))
    gather = Transfer(name="gather", kind="gather", blocks=(whole,), level=level)
    exchange = Exchange(transport, [gather], 0)
    calls, exchange.seen = exchange.calls(), []
    for value in (1.0, 5.0):
        calls[gather.given_token](np.array([value, 2, 3], np.float32))
        np.testing.assert_array_equal(take(calls, gather), [value, 2, 3, value, value])
    exchange.close()
    assert [m.n_bytes for m in exchange.seen] == [20] * 2


def test_what_is_concatenated_comes_in_its_types_and_with_nothing_in_it_too(transport):
    rows = Transfer(name="rows", kind="concatenate")
    exchange = Exchange(transport, [rows], 0)
    calls, exchange.seen = exchange.calls(), []
    for n in (3, 0, 5, 2):
        calls[rows.given_token](np.arange(2.0 * n), np.arange(n, dtype=np.int32))
        values, ids = calls[rows.taken_token]()
        assert (values.dtype, ids.dtype) == (np.float64, np.int32)
        np.testing.assert_array_equal(values, [*range(2 * n)] * 2)
        np.testing.assert_array_equal(ids, [*range(n)] * 2)
        assert n == 0 or values.ctypes.data % 64 == ids.ctypes.data % 64 == 0
    exchange.close()
    assert [(m.kind, m.n_bytes) for m in exchange.seen] == [
        ("concatenate", 2 * n * (2 * 8 + 4)) for n in (3, 0, 5, 2)
    ]


def test_memory_of_what_is_concatenated_is_used_again_for_fewer_and_replaced_for_more(transport):
    rows = Transfer(name="rows", kind="concatenate")
    exchange = Exchange(transport, [rows, FIRST], 0)
    calls = exchange.calls()

    def memory_of(n):
        calls[rows.given_token](np.ones(n))
        give(calls, FIRST, 1)
        (whole,) = calls[rows.taken_token]()
        take(calls, FIRST)  # the exchange holds nothing of what came before
        assert len(whole) == 2 * n
        return weakref.ref(whole.base)

    first = memory_of(100)
    assert memory_of(3)() is first()
    assert memory_of(100)() is first()
    larger = memory_of(1000)
    assert first() is None
    assert memory_of(0)() is larger()
    exchange.close()


def test_a_total_that_nobody_holds_is_used_again_and_one_that_is_held_stays(calls):
    def total(value):
        calls[FIRST.given_token](np.full(4, value, np.float32))
        give(calls, SECOND, 1)
        take(calls, SECOND)
        return take(calls, FIRST)

    address = total(1).ctypes.data
    assert address % 64 == 0
    again = total(2)
    assert again.ctypes.data == address
    other = total(3)
    assert other.ctypes.data != address
    np.testing.assert_array_equal(again, np.full(4, 4, np.float32))


def test_a_failure_reaches_whoever_waits_now_and_later(calls):
    give(calls, FIRST, 13)
    for transfer in (FIRST, SECOND, SECOND):
        with pytest.raises(RingError, match="the next worker has gone"):
            take(calls, transfer)


def test_sums_are_told_of_while_somebody_looks(exchange, calls):
    for looking in (False, True, False):
        exchange.seen, seen = ([], exchange.seen) if looking else (None, exchange.seen)
        for transfer, length in ((FIRST, 1), (SECOND, 2)):
            give(calls, transfer, length)
            take(calls, transfer)
    assert [(s.name, s.n_bytes) for s in seen] == [("first", 4), ("second", 8)]
    assert all(s.start_s <= s.came_s <= s.end_s for s in seen)


def test_the_end_reaches_whoever_waits(transport):
    exchange = Exchange(transport, [FIRST], 0)
    exchange.close()
    with pytest.raises(RingError, match="exchange: the session has ended"):
        take(exchange.calls(), FIRST)


@pytest.mark.parametrize(("level", "n_kept"), [(BEFORE_ALL, False), (1, True)])
def test_what_others_keep_is_held_for_a_step_only(transport, level, n_kept):
    """Memory of what owners have made is used again; of what is gathered for a step, none stays."""
    own, others = Block(sizes=(2,), tasks=(0,), vector=None), Block(sizes=(3,), tasks=(1,))
    gather = Transfer(name="gather", kind="gather", blocks=(own, others), level=level)
    exchange = Exchange(transport, [gather], 0)
    calls = exchange.calls()
    calls[gather.given_token](np.ones(2, np.float32))
    (received,) = calls[gather.taken_token]()
    memory = weakref.ref(received.base)
    del received
    deadline_s = time.monotonic() + TIMEOUT_S
    while not n_kept and memory() is not None and time.monotonic() < deadline_s:
        calls[gather.given_token](np.ones(2, np.float32))
        calls[gather.taken_token]()
    assert (memory() is not None) == n_kept
    exchange.close()
