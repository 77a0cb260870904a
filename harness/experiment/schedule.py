"""Order in which repeats of cases run."""

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
        block: number of the block, from 0; repeats of a block are measured together.
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

    Clusters follow one another, because only one cluster's workers run at a time.

    Args:
        cases: cases in matrix order.
        repeats: per case.
        seed: seed of the shuffles; equal seeds give equal orders.
        interleave: True: one repeat of every case of a workload on one shape forms a block (see
            `blocks_of`), and all cases run once before any is repeated. False: every repeat is its own
            block, and the repeats of a case follow one another.
        is_control: True for cases without communication; they come first in their block, because exposed
            communication is measured against them.
    """
    blocks: list[tuple[int, list[Case]]] = []
    if interleave:
        for repeat in range(repeats):
            blocks += [(repeat, block) for block in blocks_of(_shuffled(cases, seed=seed, repeat=repeat))]
    else:
        order = sorted(_shuffled(cases, seed=seed, repeat=0), key=lambda case: not is_control(case))
        blocks = [(repeat, [case]) for case in order for repeat in range(repeats)]
    places = {
        cluster: place for place, cluster in enumerate(dict.fromkeys(case.shape.cluster for case in cases))
    }
    blocks.sort(key=lambda block: places[block[1][0].shape.cluster])
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
    """Baseline of a case, with the same computation, on the same shape or one device; None without one."""
    alike = (
        candidate
        for candidate in cases
        if candidate.strategy == baseline
        and candidate.workload == case.workload
        and candidate.computation == case.computation
        and (candidate.shape.n_replicas == 1 or candidate.scenario == case.scenario)
        and candidate.shape.cluster == case.shape.cluster
        and (candidate.shape.n_replicas == 1 or candidate.shape == case.shape)
    )
    return next(alike, None)


def blocks_of(cases: Sequence[Case]) -> list[list[Case]]:
    """Cases that are measured together; those of one worker have no links and join the first block.

    If devices serve one process at a time, each case is a block.
    """
    blocks: dict[tuple[object, ...], list[Case]] = {}
    for case in sorted(cases, key=lambda case: case.shape.workers == 1):
        shape = case.shape
        alike = (case.workload, shape.cluster, case.computation, case.id if shape.alone else None)
        first = next((key for key in blocks if key[: len(alike)] == alike), None)
        own = (*alike, shape, case.scenario)
        blocks.setdefault(first if shape.workers == 1 and first else own, []).append(case)
    order = {case.id: place for place, case in enumerate(cases)}
    return [sorted(block, key=lambda case: order[case.id]) for block in blocks.values()]


def _shuffled(cases: Sequence[Case], *, seed: int, repeat: int) -> list[Case]:
    order = list(cases)
    # Seeded by text: with a sum, round 1 of seed 0 would equal round 0 of seed 1.
    random.Random(f"{seed}/{repeat}").shuffle(order)  # noqa: S311 - an order, not a secret
    return order
