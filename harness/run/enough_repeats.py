"""Whether repeats tell ratios as closely as was asked for, and which ones are made where they do not.

After `measure.repeats` repeats, and then each time that their number has grown by three fifths, the interval
of each case's ratio to the baseline is looked at. A case whose interval is wide yet has repeats up to the
next look, with the baseline and the control beside it; the widest come first.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.experiment.cases import Case
from harness.experiment.schedule import Slot, baseline_of, blocks_of
from harness.experiment.spec import ExperimentSpec, Until
from harness.records.common_rounds import paired_log_ratios
from harness.records.record import Record
from harness.records.student_interval import MIN_REPEATS_INTERVAL, SEQUENTIAL_CONFIDENCE, half_width

GROWTH = 1.6
MOST_REPEATS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wide:
    """A case whose interval is not narrow enough after so many repeats, and how wide it is."""

    case: Case
    n_repeats: int
    half: float


def next_look(n_repeats: int) -> int:
    """After how many repeats the intervals are looked at again."""
    return min(max(math.ceil(GROWTH * n_repeats), MIN_REPEATS_INTERVAL), MOST_REPEATS)


def is_narrow(log_ratios: Sequence[float], until: Until) -> bool:
    """Whether the interval of a ratio is as narrow as asked for."""
    half = half_width(log_ratios, confidence=SEQUENTIAL_CONFIDENCE)
    return half is not None and half <= math.log1p(until.ratio_ci)


def further_slots(spec: ExperimentSpec, cases: Sequence[Case], records: Sequence[Record]) -> tuple[Slot, ...]:
    """Repeats up to the next look, block by block; none where all is known as closely as asked for.

    Args:
        cases: those that may have more repeats, and their baselines.
        records: of the repeats so far.
    """
    until = spec.measure.until
    if until is None:
        return ()
    by_case: dict[str, dict[int, Record]] = {case.id: {} for case in cases}
    for record in records:
        if record.case in by_case:
            by_case[record.case][record.repeat] = record
    wide = {
        each.case.id: each
        for case in cases
        if (baseline := baseline_of(case, cases, spec.baseline)) is not None and baseline.id != case.id
        if (each := _looked_at(case, by_case[case.id], by_case[baseline.id], until)) is not None
    }
    turns = [turn for block in blocks_of(cases) for turn in _turns(block, wide, spec)]
    turns.sort(key=lambda turn: turn[0])
    slots: list[Slot] = []
    for _, repeat, together in turns:
        first = len(records) + len(slots)
        slots += [
            Slot(order=first + place, block=first, repeat=repeat, case=case)
            for place, case in enumerate(together)
        ]
    return tuple(slots)


def _looked_at(
    case: Case, own: Mapping[int, Record], others: Mapping[int, Record], until: Until
) -> _Wide | None:
    """A case that needs more repeats; None where it does not, or where they would tell no more."""
    n_repeats = max(own, default=-1) + 1
    logs = paired_log_ratios(list(own.values()), list(others.values()))
    # What failed would fail again.
    if not logs or n_repeats >= MOST_REPEATS or is_narrow(logs, until):
        return None
    return _Wide(case=case, n_repeats=n_repeats, half=half_width(logs) or math.inf)


def _turns(
    block: Sequence[Case], wide: Mapping[str, _Wide], spec: ExperimentSpec
) -> Iterator[tuple[tuple[int, float], int, list[Case]]]:
    """Repeats of a block: what they are ordered by, their number, and the cases that have them."""
    found = [wide[case.id] for case in block if case.id in wide]
    if not found:
        return
    n_repeats = min(each.n_repeats for each in found)
    for repeat in range(n_repeats, next_look(n_repeats)):
        due = {each.case.id for each in found if each.n_repeats <= repeat}
        together = [case for case in block if case.id in due or _goes_along(case, spec)]
        yield (repeat - n_repeats, -max(each.half for each in found)), repeat, together


def _goes_along(case: Case, spec: ExperimentSpec) -> bool:
    return case.strategy == spec.baseline or case.chosen.strategy.strategy_class == "control"


def expected_s(slots: Sequence[Slot], records: Collection[Record]) -> float:
    """Seconds that repeats will take, by what the same cases took."""
    latest_s = {record.case: record.wall_s or 0.0 for record in records}
    return sum(latest_s.get(slot.case.id, 0.0) for slot in slots)
