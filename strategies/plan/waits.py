"""Waits for the workers' own ring, each of which holds a thread of the worker that waits."""

from strategies.plan.compressors import is_encoded
from strategies.plan.ownership import is_owned
from strategies.plan.schema import Plan


def n_waiting(plan: Plan) -> int:
    """How many of a worker's threads may wait at a time: for gradients, for encoded ones, for owners' values.

    Gradients are waited for when all of their kind are handed over. Owners hand over what they have updated
    while others of its kind, or gradients of the next update, may be waited for already.
    """
    in_ring = [node for node in plan.nodes if node.transport == "tcp"]
    encoded = list(filter(is_encoded, in_ring))
    return int(len(in_ring) > len(encoded)) + int(bool(encoded)) + int(any(map(is_owned, in_ring)))
