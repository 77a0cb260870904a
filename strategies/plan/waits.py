"""Waits for the workers' own ring, each of which holds a thread of the worker that waits."""

from strategies.plan.ownership import is_owned
from strategies.plan.schema import Plan


def n_waiting(plan: Plan) -> int:
    """How many of a worker's threads may wait at a time: one for gradients, one for what owners have made.

    Gradients are waited for when all is handed over. Owners hand over what they have updated while others of
    its kind, or gradients of the next update, may be waited for already.
    """
    in_ring = [node for node in plan.nodes if node.transport == "tcp"]
    return int(bool(in_ring)) + int(any(is_owned(node) for node in in_ring))
