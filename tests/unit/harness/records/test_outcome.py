"""Counts of replicas' resharding in a record."""

from dataclasses import replace

from harness.records.outcome import ReplicaResharding, Resharding

COUNTED = ReplicaResharding(
    n_loops=4, reshards=40, shards=4, unshards=4, sent_bytes=480, whole_bytes=100, kept_bytes=52
)


def test_counts_are_those_of_one_run_of_the_loop():
    resharding = Resharding.of([COUNTED, replace(COUNTED, kept_bytes=48)])
    assert resharding == Resharding(
        n_loops=4, reshards=10, shards=1, unshards=1, sent_bytes=240, whole_bytes=100, kept_bytes=52
    )


def test_nothing_is_told_of_replicas_that_have_run_no_loop():
    assert Resharding.of([]) is None
    assert Resharding.of([replace(COUNTED, n_loops=0)]) is None
