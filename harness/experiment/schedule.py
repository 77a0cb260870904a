"""From cases to the order in which their repeats run."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.experiment.cases import Case
from harness.experiment.references import StrategyRef


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """One repeat of one case and its position in the whole run, from 0.

    Attributes:
        block: number of the block, whose repeats are measured together; counted from 0.
    """

    order: int
    block: int
    repeat: int
    case: Case

    @property
    def title(self) -> str:
        return f"{self.case.title} repeat {self.repeat}"


def schedule(
    cases: Sequence[Case],
    *,
    repeats: int,
    seed: int,
    interleave: bool,
    is_control: Callable[[Case], bool],
) -> tuple[Slot, ...]:
    """Order the repeats of all cases.

    Workers of one site are up at a time, so that sites come one after the other.

    Args:
        cases: in matrix order.
        repeats: per case.
        seed: of the shuffles; equal seeds give equal orders.
        interleave: one repeat of every case of a workload on one shape is a block, as `blocks_of` has it, and
            all of these come before any is repeated; else every repeat is a block of its own, and all repeats
            of a case come in a row.
        is_control: cases that others' communication is measured against; first in their block, so that
            exposed communication is known as soon as a case ends.
    """
    blocks: list[tuple[int, list[Case]]] = []
    if interleave:
        for repeat in range(repeats):
            blocks += [(repeat, block) for block in blocks_of(_shuffled(cases, seed=seed, repeat=repeat))]
    else:
        order = sorted(_shuffled(cases, seed=seed, repeat=0), key=lambda case: not is_control(case))
        blocks = [(repeat, [case]) for case in order for repeat in range(repeats)]
    places = {site: place for place, site in enumerate(dict.fromkeys(case.shape.site for case in cases))}
    blocks.sort(key=lambda block: places[block[1][0].shape.site])
    turns = [
        (number, repeat, case)
        for number, (repeat, block) in enumerate(blocks)
        for case in sorted(block, key=lambda case: not is_control(case))
    ]
    return tuple(
        Slot(order=order, block=block, repeat=repeat, case=case)
        for order, (block, repeat, case) in enumerate(turns)
    )


def baseline_of(case: Case, cases: Sequence[Case], baseline: StrategyRef) -> Case | None:
    """Baseline of a case, computed alike on the same shape or on one device; None if there is none."""
    alike = (
        candidate
        for candidate in cases
        if candidate.strategy == baseline
        and candidate.workload == case.workload
        and candidate.computation == case.computation
        and (candidate.shape.n_replicas == 1 or candidate.scenario == case.scenario)
        and candidate.shape.site == case.shape.site
        and (candidate.shape.n_replicas == 1 or candidate.shape == case.shape)
    )
    return next(alike, None)


def blocks_of(cases: Sequence[Case]) -> list[list[Case]]:
    """Cases that are measured together; one worker alone has no links, and joins the first block.

    If devices serve one process at a time, each case is a block.
    """
    blocks: dict[tuple[object, ...], list[Case]] = {}
    for case in sorted(cases, key=lambda case: case.shape.workers == 1):
        shape = case.shape
        alike = (case.workload, shape.site, case.computation, case.id if shape.alone else None)
        first = next((key for key in blocks if key[: len(alike)] == alike), None)
        own = (*alike, shape, case.scenario)
        blocks.setdefault(first if shape.workers == 1 and first else own, []).append(case)
    order = {case.id: place for place, case in enumerate(cases)}
    return [sorted(block, key=lambda case: order[case.id]) for block in blocks.values()]


def _shuffled(cases: Sequence[Case], *, seed: int, repeat: int) -> list[Case]:
    order = list(cases)
    # Seeded by text: with a sum, round 1 of seed 0 would be round 0 of seed 1.
    random.Random(f"{seed}/{repeat}").shuffle(order)  # noqa: S311 - an order, not a secret
    return order
