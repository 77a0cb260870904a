"""Traffic by task agrees with a payload that is written out pair by pair."""

import random

import pytest
from payload_by_pairs import payload_by_pairs
from random_plans import random_plan

from strategies.planner import payload_matrix
from strategies.registry import STRATEGIES

N_DRAWS = 100
HALF = 0.5 + 1e-6


@pytest.mark.parametrize("strategy", [s for s in STRATEGIES if not s.single], ids=lambda s: s.name)
def test_bytes_are_those_of_each_variable_between_each_pair_of_tasks(strategy):
    draws = [random_plan(random.Random(f"{strategy.name} {seed}"), strategy) for seed in range(N_DRAWS)]
    drawn = [step_and_plan for step_and_plan in draws if step_and_plan is not None]
    assert len(drawn) >= 4
    for step, plan in drawn:
        matrix = payload_matrix(plan, step)
        for rounded, exact in zip((matrix.sent, matrix.pulled), payload_by_pairs(plan, step), strict=True):
            for i, row in enumerate(rounded):
                assert all(abs(n_bytes - exact[i, j]) <= HALF for j, n_bytes in enumerate(row))
        of_task = {task: alike for alike in plan.traffic for task in alike.tasks}
        assert sorted(of_task) == list(range(len(plan.replicas_per_task)))
        for task, alike in of_task.items():
            assert alike.sent_bytes == sum(matrix.sent[task])
            assert alike.received_bytes == sum(row[task] for row in matrix.sent)
            assert alike.pull_sent_bytes == sum(matrix.pulled[task])
            assert alike.pull_received_bytes == sum(row[task] for row in matrix.pulled)
        assert plan.payload_bytes_per_step == sum(map(sum, matrix.sent))
