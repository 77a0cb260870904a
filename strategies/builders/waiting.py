"""Knobs of strategies whose updates wait for all workers: micro-batches, statistics of the whole batch."""

from strategies.builders.micro_batches import ACCUMULATE, n_micro_batches
from strategies.errors import StrategyError
from strategies.plan.strategy import Param, Params

SYNC_BATCH_NORM = Param(name="sync_batch_norm", type=bool, default=False)
KNOBS = (ACCUMULATE, SYNC_BATCH_NORM)


def has_global_statistics(params: Params) -> bool:
    """Whether BatchNormalization is to see the whole batch; not where a strategy takes no such parameter."""
    return bool(params.get(SYNC_BATCH_NORM.name, SYNC_BATCH_NORM.default))


def check_waiting(params: Params, got: str) -> None:
    """Refuse these knobs where an update does not wait for all workers.

    Args:
        got: the knob that says so.
    Raises:
        StrategyError: for the first that is asked for.
    """
    k = n_micro_batches(params)
    asked = {f"{ACCUMULATE.name}={k}": k > 1, f"{SYNC_BATCH_NORM.name}=true": has_global_statistics(params)}
    knob = next((knob for knob, given in asked.items() if given), None)
    if knob is not None:
        raise StrategyError(f"{knob} needs updates that wait for all workers, got {got}; drop one of them")


def check_apart(params: Params) -> None:
    """Refuse both knobs at once: micro-batches take turns, and none would have the others' statistics.

    Raises:
        StrategyError: both are asked for.
    """
    k = n_micro_batches(params)
    if k > 1 and has_global_statistics(params):
        raise StrategyError(
            f"{SYNC_BATCH_NORM.name}=true needs all examples at once, got {ACCUMULATE.name}={k}; drop one of "
            "them"
        )
