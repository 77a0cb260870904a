"""Strategies without communication."""

from strategies.plan.schema import PlanNode, StepSummary
from strategies.plan.strategy import Params, node_of
from strategies.topology import Topology


def independent(step: StepSummary, topology: Topology, params: Params) -> list[PlanNode]:  # noqa: ARG001 - a Layout
    """Every replica owns all variables and hears of nobody."""
    return [node_of(v) for v in step.variables]
