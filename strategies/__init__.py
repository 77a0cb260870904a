"""Capture a training step, rewrite its graph for a strategy, and say what each strategy costs.

What a user's own strategy needs is exported here; importing it never imports TensorFlow.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strategies.builders.base import Param, Params, node_of
    from strategies.builders.parameter_server import placed as on_servers
    from strategies.builders.partitioned import in_parts
    from strategies.custom import Builder
    from strategies.errors import StrategyError
    from strategies.plan import Compression, Partition, PlanNode, StepSummary, VariableSummary
    from strategies.topology import Topology

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
    "Builder": "custom:Builder",
    "Compression": "plan:Compression",
    "Param": "builders.base:Param",
    "Params": "builders.base:Params",
    "Partition": "plan:Partition",
    "PlanNode": "plan:PlanNode",
    "StepSummary": "plan:StepSummary",
    "StrategyError": "errors:StrategyError",
    "Topology": "topology:Topology",
    "VariableSummary": "plan:VariableSummary",
    "in_parts": "builders.partitioned:in_parts",
    "node_of": "builders.base:node_of",
    "on_servers": "builders.parameter_server:placed",
}


def __getattr__(name: str) -> object:
    """Import an exported name when it is first used."""
    if name not in _HOMES:
        message = f"module 'strategies' has no attribute {name!r}; it exports {', '.join(__all__)}"
        raise AttributeError(message)
    home, _, attribute = _HOMES[name].partition(":")
    return getattr(import_module(f"strategies.{home}"), attribute)
