"""Memory of workers after a step, counted in their servers' tables of resources."""

from collections import Counter

import pytest

# Where a mistake leaves workers waiting for each other, the test must not wait long.
pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(240)]
pytest.importorskip("tensorflow")

from matrix import EXACT, PARTITIONED

from harness.verification.worker.in_process import InProcessCluster, programs_of
from harness.worker.session.session import WorkerSession
from strategies.ir.graph import element_bytes, n_elements

PARAMS = {**PARTITIONED, "sharded-update": {"min_bytes": 1}}


@pytest.fixture(scope="module")
def case(cases):
    """Adam has two slots for each variable; the captured step is in float64."""
    return cases.of("wide-mlp", "adam")


def held_bytes(case, plan):
    """Bytes by task."""
    results = {}
    with InProcessCluster(programs_of(case.step, plan), case.initial) as cluster:
        cluster.step(case.batches[0])
        for message in cluster.each(WorkerSession.held_bytes):
            results |= message
    by_task = Counter()
    for (task, _), n_bytes in results.items():
        by_task[task] += n_bytes
    return [by_task[task] for task in range(len(plan.replicas_per_task))]


def bytes_of(variables):
    return sum(element_bytes(v.dtype) * n_elements(v.shape.dims) for v in variables)


def of_slots(case):
    return bytes_of(v for v in case.step.variables if v.slot_of is not None)


def of_a_copy(case):
    """Bytes of each replica under a plan in which it owns nothing alone."""
    return bytes_of(v for v in case.step.variables if v.slot_of is None)


@pytest.mark.parametrize("replicas", [(1, 1), (1, 1, 1), (2, 1)])
def test_a_replica_has_its_share_of_the_slots(case, replicas):
    plan = case.plan("sharded-update", replicas, min_bytes=1)
    n, everything = sum(replicas), of_slots(case)
    of_slots_by_task = [
        result - n_local * of_a_copy(case)
        for result, n_local in zip(held_bytes(case, plan), replicas, strict=True)
    ]
    assert sum(of_slots_by_task) == everything
    # A row or column is not divided; the widest has 16 elements, and Adam two slots.
    undivided = 2 * 16 * 8
    for n_local, n_bytes in zip(replicas, of_slots_by_task, strict=True):
        assert abs(n_bytes - everything * n_local / n) <= n_local * undivided
    whole = case.plan("all-reduce", replicas).worker_bytes
    assert plan.worker_bytes <= whole - everything // 2 * (n - 1) // n + undivided // 2  # of float32


@pytest.mark.parametrize("replicas", [(1, 1), (1, 1, 1), (2, 1)])
def test_a_replica_has_its_share_of_variables_and_slots(case, replicas):
    plan = case.plan("fully-sharded", replicas, min_bytes=1)
    n, everything = sum(replicas), of_slots(case) + of_a_copy(case)
    bytes_by_task = held_bytes(case, plan)
    # Adam's count of steps and its rate are for all updates, and every replica has them.
    common = bytes_of(v for v in case.step.variables if v.kind == "slot" and v.slot_of is None)
    common += bytes_of(v for v in case.step.variables if v.kind == "state")
    assert sum(bytes_by_task) == everything + (n - 1) * common
    # A row or column is not divided; the widest has 16 elements, and Adam two slots beside the variable.
    undivided = 3 * 16 * 8
    for n_local, n_bytes in zip(replicas, bytes_by_task, strict=True):
        assert abs(n_bytes - n_local * common - (everything - common) * n_local / n) <= n_local * undivided
    whole = case.plan("all-reduce", replicas).worker_bytes
    assert plan.worker_bytes <= whole // n + undivided // 2 + common


@pytest.mark.parametrize("replicas", [(1, 1), (1, 1, 1)])
@pytest.mark.parametrize("strategy", ["partitioned-ps", "uneven-partitioned-ps", "sharded-ps"])
def test_servers_hold_as_much_as_each_other(case, strategy, replicas):
    n_bytes = held_bytes(case, case.plan(strategy, replicas, **PARAMS[strategy]))
    assert sum(n_bytes) == of_slots(case) + of_a_copy(case)
    assert max(n_bytes) <= 1.1 * min(n_bytes)


@pytest.mark.parametrize("strategy", EXACT)
def test_workers_hold_what_the_plan_says(case, strategy):
    case = case.for_row(strategy, (1, 1))
    plan = case.plan(strategy, (1, 1), **PARAMS.get(strategy, {}))
    served = plan.server_bytes
    own = plan.worker_bytes
    # The plan counts in float32, and tells what the replica holds that owns the most.
    for task, result in enumerate(held_bytes(case, plan)):
        assert result / 2 == pytest.approx(own + served[task], rel=0.03)
