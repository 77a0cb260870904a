from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.errors import StrategyError
from strategies.topology import Topology

COUNTS = st.lists(st.integers(1, 5), min_size=1, max_size=6)


@given(COUNTS, st.integers(0, 100))
def test_shards_are_the_batch_in_rank_order_and_differ_by_one_at_most(counts, more):
    topology = Topology(replicas_per_task=tuple(counts), batch_size=sum(counts) + more)
    replicas = topology.replicas()
    assert [r.rank for r in replicas] == list(range(topology.n_replicas))
    assert [r.task for r in replicas] == sorted(r.task for r in replicas)
    assert replicas[0].start == 0
    assert replicas[-1].stop == topology.batch_size
    assert all(a.stop == b.start for a, b in pairwise(replicas))
    sizes = [r.examples for r in replicas]
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1
    for task, count in enumerate(counts):
        local = topology.local_replicas(task)
        assert [r.local for r in local] == list(range(count))
        assert all(r.device.startswith(f"/job:worker/replica:0/task:{task}/device:CPU:") for r in local)


@given(COUNTS, st.integers(1, 4), st.integers(0, 100))
def test_micro_batches_are_a_replicas_examples_in_near_equal_parts(counts, k, more):
    batch_size = sum(counts) * k + more
    topology = Topology(replicas_per_task=tuple(counts), batch_size=batch_size, micro_batches=k)
    shards = topology.shards()
    assert [s.rank for s in shards] == list(range(topology.n_shards))
    assert topology.replicas() == replace(topology, micro_batches=1).replicas()
    for replica in topology.replicas():
        own = [s for s in shards if s.replica == replica]
        assert [s.turn for s in own] == list(range(k))
        assert (own[0].start, own[-1].stop) == (replica.start, replica.stop)
        assert all(a.stop == b.start for a, b in pairwise(own))
        sizes = [s.examples for s in own]
        assert min(sizes) >= 1
        assert max(sizes) - min(sizes) <= 1
    local = [s for task in range(topology.n_tasks) for s in topology.local_shards(task)]
    assert local == list(shards)


def test_a_replica_with_one_shard_is_its_shard():
    topology = Topology(replicas_per_task=(2, 1), batch_size=7)
    assert [(s.rank, s.start, s.stop) for s in topology.shards()] == [
        (r.rank, r.start, r.stop) for r in topology.replicas()
    ]


def test_fewer_examples_than_micro_batches():
    with pytest.raises(
        StrategyError,
        match=r"got 5 examples for 2 replicas with accumulate=3; raise batch_size or lower accumulate",
    ):
        Topology(replicas_per_task=(1, 1), batch_size=5, micro_batches=3)


def test_devices():
    topology = Topology(replicas_per_task=(1, 2), batch_size=3, device="gpu")
    assert topology.replicas()[2].device == "/job:worker/replica:0/task:1/device:GPU:1"
    assert topology.host_device(1) == "/job:worker/replica:0/task:1/device:CPU:0"


def test_fewer_examples_than_replicas():
    with pytest.raises(
        StrategyError, match=r"batch_size: .* got 3 examples for 4 replicas; raise batch_size"
    ):
        Topology(replicas_per_task=(2, 2), batch_size=3)


@pytest.mark.parametrize("counts", [(), (1, 0), (-1,)])
def test_tasks_without_replicas(counts):
    with pytest.raises(StrategyError, match=r"every task needs at least one replica, got .*; drop"):
        Topology(replicas_per_task=counts, batch_size=8)


def test_collectives_take_tasks_in_the_order_of_their_names():
    topology = Topology(replicas_per_task=(1,) * 10 + (2, 1), batch_size=13)
    assert topology.collective_order() == (0, 1, 10, 11, 12, 2, 3, 4, 5, 6, 7, 8, 9)
