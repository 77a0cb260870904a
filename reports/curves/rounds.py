"""Rounds in the order of time: a slow minute shows as all strategies rising together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median

from harness.records.record import Record
from reports.curves.thinning import short
from reports.rows import RoundLine, RoundsOverTime, Row, SlowestRound

MAX_POINTS = 300
_Round = tuple[str, int]
_Relative = dict[_Round, float]


def rounds_over_time_of(rows: Sequence[Row], usable: Mapping[str, Sequence[Record]]) -> RoundsOverTime | None:
    """Windows of all repeats relative to their strategy's median; None where there are no two rounds."""
    windows = {row.strategy: dict(_windows(usable.get(row.strategy, ()))) for row in rows}
    medians_s = {name: median(steps_s.values()) for name, steps_s in windows.items() if steps_s}
    relative = {
        name: {each: step_s / median_s for each, step_s in windows[name].items()}
        for name, median_s in medians_s.items()
    }
    repeats = _repeats(usable)
    order = {block: place for place, block in enumerate(repeats)}
    rounds = sorted(
        {each for line in relative.values() for each in line}, key=lambda each: (order[each[0]], each[1])
    )
    if len(rounds) < 2:
        return None
    n_each = -(-len(rounds) // MAX_POINTS)
    points = [rounds[start : start + n_each] for start in range(0, len(rounds), n_each)]
    return RoundsOverTime(
        repeats=tuple(repeats[point[0][0]] for point in points),
        numbers=tuple(point[0][1] for point in points),
        rounds_per_point=n_each,
        lines=tuple(
            RoundLine(
                strategy=row.strategy,
                mark=row.mark.kind,
                n=len(relative[row.strategy]),
                median_s=medians_s[row.strategy],
                relative=tuple(_mean_of(relative[row.strategy], point) for point in points),
            )
            for row in rows
            if row.strategy in relative
        ),
        slowest=_slowest(rounds, relative, repeats),
    )


def _windows(records: Sequence[Record]) -> Iterator[tuple[_Round, float]]:
    """Each window's round, and its median step; what has the same block and number ran in the same round."""
    for record in records:
        if record.rounds is not None:
            for number, step_s in enumerate(record.rounds.step_s):
                if 0.0 < step_s < math.inf:
                    yield (record.rounds.block, number), step_s


def _repeats(usable: Mapping[str, Sequence[Record]]) -> dict[str, int]:
    """Blocks in the order in which they ran, with their repeats."""
    records = sorted((r for each in usable.values() for r in each), key=lambda record: record.order)
    repeats: dict[str, int] = {}
    for record in records:
        if record.rounds is not None:
            repeats.setdefault(record.rounds.block, record.repeat)
    return repeats


def _mean_of(line: _Relative, point: Sequence[_Round]) -> float | None:
    known = [line[each] for each in point if each in line]
    return short(fmean(known), significant=4) if known else None


def _slowest(
    rounds: Sequence[_Round], relative: Mapping[str, _Relative], repeats: Mapping[str, int]
) -> SlowestRound | None:
    """The round in which the strategies were slowest together; None where no two had a window in one."""
    beside = {each: [line[each] for line in relative.values() if each in line] for each in rounds}
    shared = {each: steps for each, steps in beside.items() if len(steps) > 1}
    if not shared:
        return None
    worst = max(shared, key=lambda each: median(shared[each]))
    return SlowestRound(
        repeat=repeats[worst[0]],
        number=worst[1],
        relative=median(shared[worst]),
        n_strategies=len(shared[worst]),
    )
