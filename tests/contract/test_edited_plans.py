"""Edited plans that pass the check are right: plans drawn at random compute as one device."""

import random
from typing import Any

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(240)]
pytest.importorskip("tensorflow")

from cases import Case

from strategies.plan.schema import Partition, Plan, StepSummary
from strategies.user_strategies import read_plan

DRAWS = (
    ("ps", "word-lm", "adagrad", (1, 2)),
    ("hierarchical-all-reduce", "digits-mlp", "adamw-clipped", (2, 1)),
    ("all-reduce", "digits-cnn", "adam", (2, 1)),
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    every = metafunc.config.getoption("--all-cases")
    drawn = [(*d, seed) for d in DRAWS for seed in range(6)] if every else [(*d, 0) for d in DRAWS[:2]]
    metafunc.parametrize("drawn", drawn, ids=lambda d: f"{d[0]}-{d[4]}")


def edited(case: Case, plan: Plan, seed: int) -> Plan:
    """The plan with places, cuts, buckets and proxies drawn at random, through a file."""
    draw = random.Random(seed)
    n_tasks = len(plan.replicas_per_task)
    cuts = {v.name: cut for v in case.summary.variables if (cut := drawn_cut(case.summary, v.name, draw))}
    homes = {v.name: draw.randrange(n_tasks) for v in case.summary.variables}
    nodes = []
    for v, node in zip(case.summary.variables, plan.nodes, strict=True):
        owner = v.slot_of or v.name
        on_server = node.destination is not None
        changes: dict[str, Any] = {
            "proxy": node.synchronizer == "ps" and not v.sparse and draw.random() < 0.5
        }
        if node.group is not None:
            changes["group"] = draw.randrange(3)
        if owner in cuts and v.shape == shape_of(case.summary, owner):
            n = len(cuts[owner].sizes)
            places = (
                {"destinations": tuple((homes[owner] + k) % n_tasks for k in range(n))} if on_server else {}
            )
            buckets = {"groups": tuple(range(n))} if node.group is not None else {}
            changes |= {
                "partition": cuts[owner].model_copy(update={**places, **buckets}),
                "destination": None,
                "group": None,
            }
        elif on_server and (v.slot_of is not None or v.kind != "slot"):
            changes["destination"] = homes[owner]
        nodes.append(node.model_copy(update=changes))
    text = plan.model_copy(update={"nodes": tuple(nodes)}).model_dump_json()
    topology = case.topology(plan.replicas_per_task)
    return read_plan(text, name=f"plan-{seed}", where="plan").plan(case.summary, topology)


def shape_of(summary: StepSummary, name: str) -> tuple[int, ...]:
    return next(v.shape for v in summary.variables if v.name == name)


def drawn_cut(summary: StepSummary, name: str, draw: random.Random) -> Partition | None:
    v = next(v for v in summary.variables if v.name == name)
    if v.kind != "trainable" or not v.partitionable_axes or draw.random() < 0.3:
        return None
    axis = draw.choice(v.partitionable_axes)
    bounds = sorted(draw.sample(range(1, v.shape[axis]), draw.randint(1, min(3, v.shape[axis] - 1))))
    sizes = tuple(b - a for a, b in zip([0, *bounds], [*bounds, v.shape[axis]], strict=True))
    return Partition(axis=axis, sizes=sizes)


def test_a_plan_drawn_at_random_computes_what_one_device_computes(cases, drawn):
    strategy, workload, optimizer, replicas, seed = drawn
    case = cases.of(workload, optimizer)
    plan = edited(case, case.plan(strategy, replicas), seed)
    assert any(node.partition for node in plan.nodes)
    assert plan.strategy_class == "exact"
    verdict = case.check(plan)
    worst = max(verdict.variables, key=lambda v: v.update_error)
    assert verdict.equivalent, f"{worst.name} is off by {worst.update_error:.1e}"
    assert verdict.tolerance < 1e-9
