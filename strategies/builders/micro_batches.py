"""Micro-batches: in how many parts a replica takes its examples before all synchronise once."""

from strategies.plan.strategy import Param, Params

ACCUMULATE = Param(name="accumulate", type=int, default=1, minimum=1)


def n_micro_batches(params: Params) -> int:
    """The number that a strategy's parameters ask for; 1 where it takes none."""
    value = params.get(ACCUMULATE.name, ACCUMULATE.default)
    assert isinstance(value, int)
    return value
