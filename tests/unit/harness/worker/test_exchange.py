import queue
import time

import numpy as np
import pytest

from harness.worker.exchange import Exchange
from harness.worker.ring import RingError
from strategies.program import given_token, taken_token

TIMEOUT_S = 30


class Doubling:
    """As a ring of two workers that give the same."""

    def __init__(self):
        self.lengths = []
        self.closed = queue.SimpleQueue()

    def sum(self, values, total):
        if len(values) == 13:
            raise RingError("the next worker has gone")
        self.lengths.append(len(values))
        np.multiply(values, 2, out=total)
        return time.time()

    def close(self):
        self.closed.put(True)


@pytest.fixture
def transport():
    return Doubling()


@pytest.fixture
def exchange(transport):
    exchange = Exchange(transport, ["first", "second"])
    yield exchange
    exchange.close()
    assert transport.closed.get(timeout=TIMEOUT_S)


@pytest.fixture
def calls(exchange):
    return exchange.calls()


def give(calls, name, length):
    calls[given_token(name)](np.ones(length, np.float32))


def take(calls, name):
    return calls[taken_token(name)]()


def test_sums_are_made_in_one_order_however_vectors_come(calls, transport):
    for _ in range(3):
        give(calls, "second", 2)
        give(calls, "first", 1)
        np.testing.assert_array_equal(take(calls, "second"), [2, 2])
        np.testing.assert_array_equal(take(calls, "first"), [2])
    assert transport.lengths == [1, 2] * 3


def test_a_total_that_nobody_holds_is_used_again_and_one_that_is_held_stays(calls):
    def total(value):
        calls[given_token("first")](np.full(4, value, np.float32))
        give(calls, "second", 1)
        take(calls, "second")
        return take(calls, "first")

    address = total(1).ctypes.data
    assert address % 64 == 0
    again = total(2)
    assert again.ctypes.data == address
    other = total(3)
    assert other.ctypes.data != address
    np.testing.assert_array_equal(again, np.full(4, 4, np.float32))


def test_a_failure_reaches_whoever_waits_now_and_later(calls):
    give(calls, "first", 13)
    for name in ("first", "second", "second"):
        with pytest.raises(RingError, match="the next worker has gone"):
            take(calls, name)


def test_sums_are_told_of_while_somebody_looks(exchange, calls):
    for looking in (False, True, False):
        exchange.seen, seen = ([], exchange.seen) if looking else (None, exchange.seen)
        for name, length in (("first", 1), ("second", 2)):
            give(calls, name, length)
            take(calls, name)
    assert [(s.name, s.n_bytes) for s in seen] == [("first", 4), ("second", 8)]
    assert all(s.start_s <= s.came_s <= s.end_s for s in seen)


def test_the_end_reaches_whoever_waits(transport):
    exchange = Exchange(transport, ["first"])
    exchange.close()
    with pytest.raises(RingError, match="exchange: the session has ended"):
        take(exchange.calls(), "first")
