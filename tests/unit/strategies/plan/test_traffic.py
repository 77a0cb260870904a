"""Traffic by task agrees with a payload that is written out pair by pair."""

import random
from collections import Counter

import pytest
from payload_by_pairs import payload_by_pairs
from random_plans import random_plan

from strategies.plan.partitions import joins_parts
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
        matrix = assert_payload(plan, step)
        of_task = {task: alike for alike in plan.traffic for task in alike.tasks}
        assert sorted(of_task) == list(range(len(plan.replicas_per_task)))
        for task, alike in of_task.items():
            assert alike.sent_bytes == sum(matrix.sent[task])
            assert alike.received_bytes == sum(row[task] for row in matrix.sent)
            assert alike.pull_sent_bytes == sum(matrix.pulled[task])
            assert alike.pull_received_bytes == sum(row[task] for row in matrix.pulled)
        assert plan.payload_bytes_per_step == sum(map(sum, matrix.sent))


@pytest.mark.parametrize("name", ["sharded-update", "fully-sharded"])
def test_parts_have_any_owners_and_buckets(name):
    (strategy,) = (s for s in STRATEGIES if s.name == name)
    n_plans: Counter[bool] = Counter()
    for seed in range(N_DRAWS):
        draw = random.Random(f"owners {name} {seed}")
        step, plan = random_plan(draw, strategy) or (None, None)
        if plan is not None and sum(plan.replicas_per_task) > 1:
            edited = with_owners_and_buckets(plan, draw)
            assert_payload(edited, step)
            n_plans[joins_parts(edited.nodes)] += edited.nodes != plan.nodes
    assert min(n_plans[True], n_plans[False]) > 5


def with_owners_and_buckets(plan, draw):
    """The plan with other owners of parts, some of them in other buckets."""
    n, moves = sum(plan.replicas_per_task), draw.random() < 0.5

    def edited(node):
        partition = node.partition
        if partition is None or partition.owners is None or node.synchronizer == "none":
            return node
        changes = {"owners": tuple(draw.randrange(n) for _ in partition.owners)}
        if moves and partition.groups is not None:
            changes["groups"] = tuple(group + draw.randrange(2) for group in partition.groups)
        return node.model_copy(update={"partition": partition.model_copy(update=changes)})

    return plan.model_copy(update={"nodes": tuple(map(edited, plan.nodes))})


def assert_payload(plan, step):
    matrix = payload_matrix(plan, step)
    for rounded, exact in zip((matrix.sent, matrix.pulled), payload_by_pairs(plan, step), strict=True):
        for i, row in enumerate(rounded):
            assert all(abs(n_bytes - exact[i, j]) <= HALF for j, n_bytes in enumerate(row))
    return matrix
