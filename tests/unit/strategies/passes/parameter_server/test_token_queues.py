"""Tokens reach every task once, and no task gives more than a few."""

import pytest

from strategies.passes.parameter_server.token_queues import FAN_OUT, tokens_down

OPS = ("QueueEnqueueV2", "QueueDequeueV2")


def groups_of(root, task, n_tasks):
    return tokens_down(
        root, task, n_tasks, name=lambda k: f"token_{k}", device=lambda k: f"device_{k}", after=["before"]
    )


@pytest.mark.parametrize("n_tasks", [2, FAN_OUT + 1, FAN_OUT + 2, 100, 1024])
@pytest.mark.parametrize("root", [0, 1])
def test_every_other_task_gets_one_token_where_it_waits(root, n_tasks):
    puts, takes = {}, {}
    for task in range(n_tasks):
        for *_, last in groups_of(root, task, n_tasks):
            queue = last.inputs[0]
            assert last.device == (f"device_{task}" if last.op == OPS[0] else last.device)
            (puts if last.op == OPS[0] else takes)[queue] = last.device
    assert puts == takes
    assert puts.keys() == {f"token_{k}" for k in range(n_tasks) if k != root}


@pytest.mark.parametrize("task", [0, 1, 500])
def test_a_task_passes_its_token_on_once_it_has_it(task):
    groups = groups_of(0, task, 1024)
    assert len(groups) <= FAN_OUT + 1
    before = "before"
    for *_, last in groups:
        assert last.control_inputs == (before,)
        before = last.name if last.op == OPS[1] else before


def test_a_few_tasks_get_theirs_from_the_root():
    assert len(groups_of(0, 0, FAN_OUT + 1)) == FAN_OUT
    assert all(len(groups_of(0, task, FAN_OUT + 1)) == 1 for task in range(1, FAN_OUT + 1))
