"""Repeats beyond the requested ones."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.experiment.cases import Case
from harness.experiment.model import Experiment, Until
from harness.experiment.schedule import Slot, baseline_of, blocks_of
from harness.records.comparison import SEQUENTIAL_CONFIDENCE, RepeatedMean, paired_ratios
from harness.records.record import Record

FIRST_LOOK = 4
GROWTH = 1.6
MOST_REPEATS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class NarrowRatios:
    """Rule that adds repeats until intervals of ratios are as narrow as `measure.until` requires."""

    spec: Experiment
    until: Until

    @property
    def at_most_s(self) -> float:
        return self.until.at_most_s

    def slots(self, cases: Sequence[Case], records: Sequence[Record], *, first: int) -> Sequence[Slot]:
        return further_slots(self.spec, cases, records, first=first)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Due:
    case: Case
    n_repeats: int
    look: int
    half: float


def looks(n_asked: int) -> Iterator[int]:
    """Numbers of repeats after which intervals are evaluated.

    Args:
        n_asked: requested repeats.
    """
    look = max(FIRST_LOOK, n_asked)
    while look < MOST_REPEATS:
        yield look
        look = math.ceil(GROWTH * look)
    yield max(MOST_REPEATS, n_asked)


def is_narrow(ratio: RepeatedMean, until: Until) -> bool:
    """True if the interval of a ratio's logarithm is as narrow as requested."""
    half = ratio.half_width(SEQUENTIAL_CONFIDENCE)
    return half is not None and half <= math.log1p(until.ratio_ci)


def further_slots(
    spec: Experiment, cases: Sequence[Case], records: Sequence[Record], *, first: int
) -> tuple[Slot, ...]:
    """Repeats up to the next evaluation, block by block; empty if all intervals are narrow enough.

    Args:
        cases: cases of one cluster.
        records: records of the run so far.
        first: number of the first of these repeats, and of its block, in the whole run.
    """
    if spec.measure.until is None:
        return ()
    by_case: dict[str, list[Record]] = {case.id: [] for case in cases}
    for record in records:
        if record.case in by_case:
            by_case[record.case].append(record)
    due_of_case = {
        case.id: due
        for case in cases
        if (baseline := baseline_of(case, cases, spec.baseline)) is not None and baseline.id != case.id
        if (due := _due(case, by_case[case.id], by_case[baseline.id], spec)) is not None
    }
    turns = [turn for block in blocks_of(cases) for turn in _turns(block, due_of_case, spec)]
    turns.sort(key=lambda turn: turn[0])
    slots: list[Slot] = []
    for _, repeat, together in turns:
        order = first + len(slots)
        slots += [
            Slot(order=order + place, block=order, repeat=repeat, case=case)
            for place, case in enumerate(together)
        ]
    return tuple(slots)


def _due(case: Case, own: Sequence[Record], others: Sequence[Record], spec: Experiment) -> _Due | None:
    until = spec.measure.until
    assert until is not None
    latest = max(own, key=lambda record: record.repeat, default=None)
    # Failed cases would fail again, and an implausible case stays implausible.
    if latest is None or latest.status != "ok" or any(record.status == "implausible" for record in own):
        return None
    ratios = paired_ratios(*([record for record in of if record.status == "ok"] for of in (own, others)))
    n_repeats = latest.repeat + 1
    known = list(looks(spec.measure.repeats))
    if not ratios.logs or n_repeats >= known[-1] or (n_repeats in known and is_narrow(ratios.mean(), until)):
        return None
    # Between two evaluations nothing is decided, even after an interruption.
    look = next(look_at for look_at in known if look_at > n_repeats)
    return _Due(case=case, n_repeats=n_repeats, look=look, half=ratios.mean().half_width() or math.inf)


def _turns(
    block: Sequence[Case], due_of_case: Mapping[str, _Due], spec: Experiment
) -> Iterator[tuple[tuple[int, float], int, list[Case]]]:
    due = [due_of_case[case.id] for case in block if case.id in due_of_case]
    if not due:
        return
    first = min(item.n_repeats for item in due)
    for repeat in range(first, max(item.look for item in due)):
        having = {item.case.id: item for item in due if item.n_repeats <= repeat < item.look}
        if having:
            together = [case for case in block if case.id in having or _goes_along(case, spec)]
            yield (repeat - first, -max(item.half for item in having.values())), repeat, together


def _goes_along(case: Case, spec: Experiment) -> bool:
    return case.strategy == spec.baseline or case.chosen.strategy.strategy_class == "control"


def expected_s(slots: Sequence[Slot], records: Collection[Record]) -> float:
    """Expected seconds of repeats, from earlier repeats of the same case, or else of all cases."""
    latest_s = {record.case: record.wall_s for record in records if record.wall_s}
    otherwise_s = sum(latest_s.values()) / len(latest_s) if latest_s else 0.0
    return sum(latest_s.get(slot.case.id, otherwise_s) for slot in slots)
