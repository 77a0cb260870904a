"""Knobs of strategies whose updates wait for all workers: micro-batches, statistics of the whole batch."""

from strategies.errors import StrategyError
from strategies.plan.execution import Execution
from strategies.plan.strategy import Param, Params

ACCUMULATE = Param(name="accumulate", type=int, default=1, minimum=1)
SYNC_BATCH_NORM = Param(name="sync_batch_norm", type=bool, default=False)
KNOBS = (ACCUMULATE, SYNC_BATCH_NORM)


def check_waiting(params: Params, got: str) -> None:
    """Refuse these knobs where an update does not wait for all workers.

    Args:
        got: the knob that says so.
    Raises:
        StrategyError: for the first that is asked for.
    """
    steps = Execution.of(params)
    k = steps.micro_batches
    asked = {f"{ACCUMULATE.name}={k}": k > 1, f"{SYNC_BATCH_NORM.name}=true": steps.global_statistics}
    knob = next((knob for knob, given in asked.items() if given), None)
    if knob is not None:
        raise StrategyError(f"{knob} needs updates that wait for all workers, got {got}; drop one of them")


def check_apart(params: Params) -> None:
    """Refuse both knobs at once: micro-batches take turns, and none would have the others' statistics.

    Raises:
        StrategyError: both are asked for.
    """
    steps = Execution.of(params)
    if steps.micro_batches > 1 and steps.global_statistics:
        raise StrategyError(
            f"{SYNC_BATCH_NORM.name}=true needs all examples at once, got {ACCUMULATE.name}="
            f"{steps.micro_batches}; drop one of them"
        )
