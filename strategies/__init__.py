"""Capture a training step, rewrite its graph for a strategy, and predict each strategy's traffic.

Everything that a user's own strategy needs is exported here; importing it never imports TensorFlow.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strategies.builders.parameter_server import placed as on_servers
    from strategies.builders.partitioned import in_parts
    from strategies.errors import StrategyError
    from strategies.params import Param, Params
    from strategies.plan.schema import Compression, Partition, PlanNode, StepSummary, VariableSummary
    from strategies.plan.strategy import node_of
    from strategies.topology import Topology
    from strategies.user_strategies import Builder

__all__ = [
    "Builder",
    "Compression",
    "Param",
    "Params",
    "Partition",
    "PlanNode",
    "StepSummary",
    "StrategyError",
    "Topology",
    "VariableSummary",
    "in_parts",
    "node_of",
    "on_servers",
]

_HOMES = {
    "Builder": "strategies.user_strategies:Builder",
    "Compression": "strategies.plan.schema:Compression",
    "Param": "strategies.params:Param",
    "Params": "strategies.params:Params",
    "Partition": "strategies.plan.schema:Partition",
    "PlanNode": "strategies.plan.schema:PlanNode",
    "StepSummary": "strategies.plan.schema:StepSummary",
    "StrategyError": "strategies.errors:StrategyError",
    "Topology": "strategies.topology:Topology",
    "VariableSummary": "strategies.plan.schema:VariableSummary",
    "in_parts": "strategies.builders.partitioned:in_parts",
    "node_of": "strategies.plan.strategy:node_of",
    "on_servers": "strategies.builders.parameter_server:placed",
}


def __getattr__(name: str) -> object:
    """Import an exported name when it is first used."""
    if name not in _HOMES:
        message = f"module 'strategies' has no attribute {name!r}; it exports {', '.join(__all__)}"
        raise AttributeError(message)
    home, _, attribute = _HOMES[name].partition(":")
    return getattr(import_module(home), attribute)
