"""Robust aggregation: gradients of all workers combined by a rule, on a server or by every worker."""

from collections.abc import Mapping, Sequence
from typing import Any

from strategies.builders import all_reduce, parameter_server
from strategies.builders.waiting import KNOBS
from strategies.errors import StrategyError, UnsupportedError
from strategies.plan.aggregation import (
    BUCKETING,
    BY_NAME,
    MEAN,
    MIXING,
    NONE,
    RULES,
    USUAL,
    VARIANTS,
    Aggregation,
)
from strategies.plan.schema import PlanNode, StepSummary, StrategyClass
from strategies.plan.strategy import Param, Params
from strategies.topology import Topology

RULE = (
    Param(name="rule", type=str, default="median", choices=tuple(BY_NAME)),
    Param(name="f", type=int, default=None, minimum=0),
    Param(name="m", type=int, default=None, minimum=1),
    Param(name="variant", type=str, default=None, choices=VARIANTS),
    Param(name="iterations", type=int, default=None, minimum=1, maximum=10_000),
    Param(name="nu", type=float, default=None, minimum=1e-300),
    Param(name="tau", type=float, default=None, minimum=1e-300),
    Param(name="pre", type=str, default=NONE, choices=(NONE, MIXING, BUCKETING)),
    Param(name="bucket_size", type=int, default=None, minimum=1),
)
PARAMS = (*RULE, *KNOBS)
SERVERS = (
    Param(name="servers", type=int, default=1, minimum=1),
    Param(name="lying", type=int, default=0, minimum=0),
)
SERVER = 0


def settle(params: Params, otherwise: StrategyClass) -> StrategyClass:
    """The class of a rule: what it leaves out or weighs by itself no reference does.

    Args:
        otherwise: of the plain mean of all.
    """
    return otherwise if params.get("rule") == MEAN and params.get("pre") in (None, NONE) else "statistical"


def on_server(step: StepSummary, topology: Topology, params: Params) -> list[PlanNode]:
    """All variables on one server, which combines the gradients of all workers.

    Raises:
        StrategyError: workers are too few for the rule, or it has no such knob.
    """
    _check(step, topology, params)
    if int(params.get("servers") or 1) > 1:
        return _in_copies(step, topology, params)
    return parameter_server.placed(step, {v.name: SERVER for v in step.variables}, topology, params)


def _in_copies(step: StepSummary, topology: Topology, params: Params) -> list[PlanNode]:
    """All variables on several servers, which each combine all gradients."""
    if max(topology.replicas_per_task) > 1:
        raise UnsupportedError(
            "strategy 'robust-ps': servers of copies need one replica in each worker, got "
            f"{max(topology.replicas_per_task)}; use replicas=1, or leave servers out"
        )
    nodes = all_reduce.hierarchical(step, topology, params)
    trained = {v.name for v in step.variables if v.kind == "trainable" and v.synced}
    return [_served(node) if node.variable in trained else node for node in nodes]


def _served(node: PlanNode) -> PlanNode:
    return node.model_copy(update={"synchronizer": "robust-servers", "group": None, "transport": None})


def by_all_workers(step: StepSummary, topology: Topology, params: Params) -> list[PlanNode]:
    """Gradients gathered by every worker; new forward state is averaged between workers.

    Raises:
        StrategyError: as `on_server`.
    """
    _check(step, topology, params)
    nodes = all_reduce.hierarchical(step, topology, params)
    trained = {v.name for v in step.variables if v.kind == "trainable" and v.synced}
    return [
        node.model_copy(update={"synchronizer": "robust-gather", "group": None, "transport": None})
        if node.variable in trained
        else node
        for node in nodes
    ]


def notes(step: StepSummary, nodes: Sequence[PlanNode], topology: Topology, params: Params) -> Sequence[str]:
    """What a plan should say of its rule."""
    del step, nodes
    aggregation = Aggregation.of(params, topology.n_tasks)
    assert aggregation is not None
    rule = BY_NAME[aggregation.rule]
    most = "the most that it withstands" if params.get("f") is None else f"it needs {rule.bound()}"
    workers = f"{aggregation.n} workers"
    return (f"rule={aggregation.rule} with f={aggregation.f} of {workers}: {most}",)


def _check(step: StepSummary, topology: Topology, params: Params) -> None:
    Aggregation.of(params, topology.n_tasks)
    unknown = next((v for v in step.variables if v.kind == "trainable" and v.synced and -1 in v.shape), None)
    if unknown is not None:
        raise StrategyError(
            f"variable {unknown.name!r}: a rule needs gradients of a static shape, got {unknown.shape}; "
            "declare its shape, or use ps"
        )


def describe() -> Sequence[Mapping[str, Any]]:
    """What `stratbench list aggregators` shows."""
    kinds = {param.name: param.type.__name__ for param in PARAMS}
    rules = [
        {
            "name": rule.name,
            "summary": f"{rule.summary}; needs {rule.bound()}",
            "params": [
                {"name": knob, "type": kinds[knob], "default": USUAL.get((rule.name, knob))}
                for knob in ("f", *rule.knobs)
            ],
        }
        for rule in RULES
    ]
    before: list[Mapping[str, Any]] = [
        {
            "name": MIXING,
            "summary": "before a rule: each gradient becomes the mean of its n − f nearest",
            "params": [],
        },
        {
            "name": BUCKETING,
            "summary": "before a rule: means of a few gradients in random order take their place",
            "params": [{"name": "bucket_size", "type": "int", "default": 2}],
        },
    ]
    return [*rules, *before]
