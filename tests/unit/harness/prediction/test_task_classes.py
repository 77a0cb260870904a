"""Classes of tasks that are alike."""

import pytest

from harness.prediction.task_classes import task_classes
from strategies.topology import Topology

TOPOLOGY = Topology(replicas_per_task=(1,) * 12, batch_size=12)


def test_tasks_that_do_the_same_are_one_class() -> None:
    classes = task_classes(TOPOLOGY, (), (0.0,) * 12, n_shared=None)
    assert (classes.alike, classes.members) == ({0: list(range(12))},) * 2
    assert classes.first == {0: 0}


def test_tasks_of_a_class_share_a_core() -> None:
    classes = task_classes(TOPOLOGY, (), (0.0,) * 12, n_shared=5)
    assert classes.alike == classes.members
    assert list(classes.alike.values()) == [[0, 5, 10], [1, 6, 11], [2, 7], [3, 8], [4, 9]]


@pytest.mark.parametrize("n_shared", [None, 2])
def test_of_many_classes_those_with_the_first_task_and_the_longest_wait_are_simulated(n_shared) -> None:
    waits_s = tuple(float(n) for n in range(12))
    classes = task_classes(TOPOLOGY, (), waits_s, n_shared=n_shared)
    assert len(classes.alike) == 8
    assert {0, 11} <= set(classes.first.values())
    assert sorted(task for tasks in classes.members.values() for task in tasks) == list(range(12))
