"""Workers wait exactly as long as the slowest is too far behind, and whoever waits is let go on."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.numerics.waiting import count_step, register_wait

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 5), st.integers(1, 3), st.lists(st.integers(0, 1 << 16), min_size=20, max_size=60))
def test_no_worker_is_ahead_of_the_slowest_by_more_than_the_staleness(n, staleness, draws):
    clocks = tf.zeros([n], tf.int64)
    waiting = []
    for draw in draws:
        free = [worker for worker in range(n) if worker not in waiting]
        # The slowest never waits.
        task = free[draw % len(free)]
        clocks, n_released, waits = count_step(clocks, task=task, staleness=staleness)
        waiting += [task] if waits else []
        del waiting[: int(n_released)]
        slowest = min(clocks.numpy())
        assert {worker for worker in range(n) if clocks[worker] > slowest + staleness} == set(waiting)


@pytest.mark.parametrize(("n_updates", "waits"), [(3, 1), (4, 0), (7, 0)])
def test_a_worker_waits_unless_it_has_a_newer_update(n_updates, waits):
    began, n_waiting = tf.constant(3, tf.int64), tf.constant(2, tf.int64)
    result = register_wait(began, tf.constant(n_updates, tf.int64), n_waiting)
    assert [int(value) for value in result] == [2 + waits, waits]
