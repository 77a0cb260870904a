"""From cases to the order in which their repeats run."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.experiment.cases import Case


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """One repeat of one case and its position in the whole run, from 0."""

    order: int
    repeat: int
    case: Case

    @property
    def title(self) -> str:
        """As a person is told of it."""
        case = self.case
        return f"{case.workload_name} {case.strategy} {case.shape.size} repeat {self.repeat}"


def schedule(
    cases: Sequence[Case],
    *,
    repeats: int,
    seed: int,
    interleave: bool,
    is_control: Callable[[Case], bool],
) -> tuple[Slot, ...]:
    """Order the repeats of all cases.

    Args:
        cases: in matrix order.
        repeats: per case.
        seed: of the shuffles; equal seeds give equal orders.
        interleave: one repeat of every case of a site before any is repeated; else all repeats of a case in a
            row. Workers of one site are up at a time, so that sites come one after the other either way.
        is_control: cases that others' communication is measured against; first in their round, so that
            exposed communication is known as soon as a case ends.
    """
    if interleave:
        rounds = [(repeat, _shuffled(cases, seed=seed, repeat=repeat)) for repeat in range(repeats)]
        turns = [(repeat, case) for repeat, order in rounds for case in _first(order, is_control)]
    else:
        order = _first(_shuffled(cases, seed=seed, repeat=0), is_control)
        turns = [(repeat, case) for case in order for repeat in range(repeats)]
    places = {site: place for place, site in enumerate(dict.fromkeys(case.shape.site for case in cases))}
    turns.sort(key=lambda turn: places[turn[1].shape.site])
    return tuple(Slot(order=order, repeat=repeat, case=case) for order, (repeat, case) in enumerate(turns))


def _shuffled(cases: Sequence[Case], *, seed: int, repeat: int) -> list[Case]:
    order = list(cases)
    # Seeded by text: with a sum, round 1 of seed 0 would be round 0 of seed 1.
    random.Random(f"{seed}/{repeat}").shuffle(order)  # noqa: S311 - an order, not a secret
    return order


def _first(order: Sequence[Case], is_control: Callable[[Case], bool]) -> list[Case]:
    return sorted(order, key=lambda case: not is_control(case))
