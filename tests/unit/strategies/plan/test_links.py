"""Bytes by task of links in every form are the sums of their matrices."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from strategies.plan.links import PairLinks, Ring, ServerLinks, busiest, task_bytes, total, whole_matrix
from strategies.topology import Topology

COUNTS = st.lists(st.integers(1, 3), min_size=1, max_size=6)
# Quarters have exact sums in any order.
BYTES = st.integers(0, 10**6).map(lambda n: n / 4)


@st.composite
def links_of(draw, topology):
    n_tasks, kinds = topology.n_tasks, topology.kinds()
    form = draw(st.sampled_from(("even ring", "ring", "servers", "pairs")))
    if form == "even ring":
        return Ring(n_tasks=n_tasks, forwarded=draw(BYTES))
    if form == "ring":
        return Ring(n_tasks=n_tasks, forwarded=np.array([draw(BYTES) for _ in range(n_tasks)]))
    if form == "pairs":
        # Even, so that halves from servers, which no plan has beside pairs, are rounded the same way.
        shares = [2.0 * draw(st.integers(0, 50)) for _ in range(topology.n_replicas)]
        return PairLinks(replicas_per_task=topology.replicas_per_task, shares=np.array(shares))
    servers = sorted(draw(st.sets(st.integers(0, n_tasks - 1), min_size=1)))
    n_bytes = [[draw(BYTES) for _ in kinds.examples] for _ in servers]
    return ServerLinks(
        kinds=kinds,
        servers=np.array(servers),
        n_bytes=np.array(n_bytes),
        from_servers=draw(st.booleans()),
    )


@st.composite
def cases(draw):
    counts = draw(COUNTS)
    topology = Topology(replicas_per_task=tuple(counts), batch_size=sum(counts) + draw(st.integers(0, 9)))
    return topology, draw(st.lists(links_of(topology), min_size=1, max_size=4))


@given(cases())
def test_sent_and_received_are_sums_of_rows_and_columns(case):
    _, all_links = case
    for links in all_links:
        matrix = links.matrix()
        assert not np.diag(matrix).any()
        np.testing.assert_allclose(links.sent(), matrix.sum(axis=1))
        np.testing.assert_allclose(links.received(), matrix.sum(axis=0), atol=1e-9)
        np.testing.assert_allclose(total(links), matrix.sum())
        most = np.maximum(matrix.sum(axis=0), matrix.sum(axis=1))
        np.testing.assert_allclose(most[busiest(links)], most.max())


@given(cases())
def test_each_pair_of_tasks_sends_whole_bytes(case):
    topology, all_links = case
    matrix = np.array(whole_matrix(all_links, topology.n_tasks))
    n_bytes = task_bytes(all_links, topology.kinds())
    assert n_bytes.sent.tolist() == matrix.sum(axis=1).tolist()
    assert n_bytes.received.tolist() == matrix.sum(axis=0).tolist()
