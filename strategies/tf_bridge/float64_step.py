"""A whole captured step in float64: the graph, and what says of its parts which type they have."""

from dataclasses import replace

from strategies.ir.train_graph import TrainGraph
from strategies.tf_bridge.float64 import to_float64
from strategies.tf_bridge.widen import widen


def step_in_float64(step: TrainGraph) -> TrainGraph:
    """The step with every floating variable, feed, gradient and constant in double; made before any pass."""
    return replace(
        step,
        graph=to_float64(step.graph),
        variables=tuple(replace(v, dtype=widen(v.dtype)) for v in step.variables),
        boundaries=tuple(replace(b, dtype=widen(b.dtype)) for b in step.boundaries),
        batch=tuple(replace(b, dtype=widen(b.dtype)) for b in step.batch),
        statistics=tuple(replace(s, dtype=widen(s.dtype)) for s in step.statistics),
    )
