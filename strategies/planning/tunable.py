"""Tunable knobs of a strategy: every combination of the values that it declares worth measuring."""

import itertools
import math

from strategies.errors import StrategyError
from strategies.plan.strategy import Params, Strategy
from strategies.planning.plan import settled

MOST_COMBINATIONS = 1_000
"""Each is planned before any is measured."""


def alternatives(strategy: Strategy, given: Params) -> tuple[Params, ...]:
    """Other parameters that compute the same, each with those that were given.

    Args:
        strategy: in the class that it has with these.
        given: snake_case.
    Returns:
        Parameters to be given in their place; none that contradict each other, or change the class.
    Raises:
        StrategyError: they are too many.
    """
    params = [p for p in strategy.params if p.tunable and p.name not in given]
    choices = [tuple(dict.fromkeys((p.default, *p.tunable))) for p in params]
    n_combinations = math.prod(map(len, choices))
    if n_combinations > MOST_COMBINATIONS:
        raise StrategyError(
            f"strategy {strategy.name!r}: tunable values must combine to at most {MOST_COMBINATIONS}, got "
            f"{n_combinations} of {', '.join(p.name for p in params)}; give some of these a value"
        )
    found = []
    for values in itertools.product(*choices):
        changes = {p.name: value for p, value in zip(params, values, strict=True) if value != p.default}
        changed = {**given, **changes}
        if changes and _computes_the_same(strategy, changed):
            found.append(changed)
    return tuple(found)


def _computes_the_same(strategy: Strategy, params: Params) -> bool:
    try:
        return settled(strategy, params)[0].strategy_class == strategy.strategy_class
    except StrategyError:
        return False  # knobs of which only one can be given
