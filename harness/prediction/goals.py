"""Goals of a recommendation, and its conditions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from harness.experiment.references import StrategyRef


class Goal(StrEnum):
    """Figure that a recommended plan makes small."""

    FASTEST = "fastest"
    NETWORK = "network"
    CHEAPEST = "cheapest"


SLACK = {Goal.FASTEST: math.inf, Goal.NETWORK: 1.1, Goal.CHEAPEST: 2.0}
"""Most time per example of a plan that serves a goal, relative to the fastest plan's."""
RULES = {
    Goal.FASTEST: "shortest step",
    Goal.NETWORK: "fewest bytes on the busiest link, within 10 % of the fastest",
    Goal.CHEAPEST: "fewest worker-hours per example, with as many workers or fewer, within twice the "
    "fastest's time per example",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Aim:
    """Conditions of a recommendation.

    Attributes:
        workers: number of workers; for the goal `cheapest` the most.
        link_mbit: limit of each link; None is no limit.
        strategies: strategies to search from; empty for all that can be predicted.
        inexact: True allows strategies whose result differs by design, such as compressed gradients.
        seconds: time limit of the search. seed: seed of its mixtures.
    """

    goal: Goal
    workers: int
    link_mbit: float | None
    strategies: Sequence[StrategyRef] = ()
    inexact: bool = False
    seconds: float = 60.0
    seed: int = 0
