"""Exchanges of many workers: as many flows as of few, and a plan whose JSON stays small."""

import json

import pytest
from planning import slot, step_of, trainable

from strategies.errors import StrategyError
from strategies.plan.schema import Plan
from strategies.planner import exchanges
from strategies.registry import STRATEGIES, make_plan
from strategies.topology import Topology

MANY = 4096


def cuttable(name, *shape, **fields):
    axes = tuple(range(len(shape)))
    return trainable(
        name,
        *shape,
        partitionable_axes=axes,
        apart=True,
        apart_axes=axes,
        read_before_update=True,
        **fields,
    )


def step_of_layers():
    """Five layers and two tables with more rows than there are workers, and a slot for each variable."""
    variables = []
    for place in range(5):
        variables += [
            cuttable(f"layer_{place}/kernel", 5000 + 37 * place, 64, readiness=2 * place),
            cuttable(f"layer_{place}/bias", 64, readiness=2 * place + 1),
        ]
    for place in range(2):
        table = {"sparse": True, "rows_per_example": 2.0, "readiness": 10 + place}
        variables.append(cuttable(f"table_{place}", 9000 + place, 16, **table))
    return step_of(*variables, *(slot(f"{v.name}/m", v.name, *v.shape) for v in variables))


STEP = step_of_layers()


def planned(strategy, n_tasks):
    device = "tpu" if strategy.devices == ("tpu",) else "cpu"
    topology = Topology(replicas_per_task=(1,) * n_tasks, batch_size=2 * n_tasks, device=device)
    try:
        return make_plan(strategy.name, {}, STEP, topology)
    except StrategyError:
        return None


BETWEEN_WORKERS = [strategy for strategy in STRATEGIES if planned(strategy, 2) is not None]


@pytest.mark.parametrize("strategy", BETWEEN_WORKERS, ids=lambda strategy: strategy.name)
def test_a_plan_of_many_workers_is_as_short_as_one_of_few(strategy):
    many, few = planned(strategy, MANY), planned(strategy, 16)
    text = json.dumps(many.model_dump(mode="json"), indent=2)
    assert len(text) < 2 * len(json.dumps(few.model_dump(mode="json"), indent=2)) < 100_000
    assert Plan.model_validate_json(text) == many
    n_flows, n_flows_of_few = len(exchanges(many, STEP)), len(exchanges(few, STEP))
    assert n_flows <= 2 * n_flows_of_few
