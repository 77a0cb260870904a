"""Curves of one comparison: speed against traffic, losses, rounds over time, memory of workers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median

import numpy as np
import numpy.typing as npt

from harness.records.record import Record
from reports.contrasts import Contrasts
from reports.recommendation.candidates import SentBytes, can_win, layer_of, sent_by, together
from reports.rows.repeat import timed_span
from reports.rows.report import (
    Curves,
    LossCurve,
    RoundLine,
    RoundsOverTime,
    TradeOff,
    TradeOffPoint,
    WorkerMemory,
)
from reports.rows.row import Row


def spread(n: int, most: int) -> list[int]:
    """At most `most` of n places, evenly spread, with the first and the last."""
    places: list[int] = np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(int)).tolist()
    return places


def short(value: float, *, significant: int) -> float | None:
    """Number rounded to significant digits; None if it is not finite."""
    return float(f"{value:.{significant}g}") if math.isfinite(value) else None


def trade_off_of(rows: Sequence[Row], contrasts: Contrasts) -> TradeOff | None:
    """Throughput against bytes per step; None unless two candidates have both."""
    candidates = [row for row in rows if can_win(row)]
    layer = layer_of(candidates)
    known = [
        (row, row.rate, sent)
        for row in rows
        if row.status == "ok" and row.rate is not None and row.mark.kind != "twin"
        if (sent := sent_by(row, layer)) is not None
    ]
    rivals = [(row, sent) for row, _, sent in known if can_win(row)]
    if len(rivals) < 2:
        return None
    return TradeOff(
        layer=layer,
        points=tuple(
            TradeOffPoint(
                strategy=row.strategy,
                mark=row.mark.kind,
                can_win=can_win(row),
                rate=rate,
                sent_bytes=sent.mean,
                is_bound=sent.is_bound,
                on_front=can_win(row)
                and not any(
                    _dominates(rival, (row, sent), contrasts) for rival in rivals if rival[0] is not row
                ),
            )
            for row, rate, sent in known
        ),
    )


def _dominates(rival: tuple[Row, SentBytes], point: tuple[Row, SentBytes], contrasts: Contrasts) -> bool:
    """True if a rival is at least as good in both figures and significantly better in one."""
    (rival_row, rival_sent), (row, sent) = rival, point
    lead = contrasts.of(rival_row.strategy, row.strategy)
    if lead is None or lead.value < 1.0 or rival_sent.mean.value > sent.at_least:
        return False
    return not together(rival_row, row, contrasts) or rival_sent.is_surely_less(sent)


MAX_POINTS = 40
_Floats = npt.NDArray[np.float64]


def loss_curves_of(rows: Sequence[Row], usable: Mapping[str, Sequence[Record]]) -> tuple[LossCurve, ...]:
    """A curve for each row whose records have losses of at least two steps."""
    return tuple(curve for row in rows if (curve := _curve(row, usable.get(row.strategy, ()))) is not None)


def _curve(row: Row, records: Sequence[Record]) -> LossCurve | None:
    known = [(record, steps) for record in records if (steps := _steps_of(record)) is not None]
    if not known:
        return None
    at_steps = _common_steps([steps for _, steps in known])
    if len(at_steps) < 2:
        return None
    losses = np.stack(
        [np.interp(at_steps, steps, np.array(record.loss, dtype=np.float64)) for record, steps in known]
    )
    low, high = (_rounded(limit(losses, axis=0)) for limit in (np.min, np.max))
    at_s = np.mean([_seconds_at(at_steps, record) for record, _ in known], axis=0)
    return LossCurve(
        strategy=row.strategy,
        mark=row.mark.kind,
        n=len(known),
        at_steps=tuple(int(step) for step in at_steps),
        at_s=tuple(float(f"{s:.5g}") for s in at_s),
        mean=_rounded(np.mean(losses, axis=0)),
        low=() if low == high else low,
        high=() if low == high else high,
    )


def _steps_of(record: Record) -> _Floats | None:
    """Step number of each loss; losses are spread evenly over all steps after the warm-up."""
    span, losses = timed_span(record), record.loss
    if span is None or losses is None or not 2 <= len(losses) <= span[1] - span[0] + 1:
        return None
    # The harness rounds in the same way, counting from 0.
    steps: _Floats = np.linspace(0, span[1] - span[0], len(losses)).round() + span[0]
    return steps


def _common_steps(steps: Sequence[_Floats]) -> _Floats:
    """Steps within the range of all repeats, of the repeat with fewest steps there; evenly thinned."""
    first, last = max(step[0] for step in steps), min(step[-1] for step in steps)
    inside = [step[(step >= first) & (step <= last)] for step in steps]
    fewest = min(inside, key=len)
    places = spread(len(fewest), MAX_POINTS) if len(fewest) else []
    common: _Floats = fewest[places]
    return common


def _seconds_at(steps: _Floats, record: Record) -> _Floats:
    """Seconds up to each step: steps of a window at its median, all others at the repeat's median."""
    span, rounds = timed_span(record), record.rounds
    assert span is not None
    assert record.step_s is not None
    median_s = record.step_s.p50 or np.nan
    n_warmup, n_made = span[0] - 1, span[1] - span[0] + 1
    n_each = 0 if rounds is None else rounds.n_lead + rounds.n_steps
    if rounds is None or n_each * len(rounds.step_s) != n_made:
        return steps * median_s
    ends = n_warmup + n_each * np.arange(len(rounds.step_s) + 1)
    ends_s = n_warmup * median_s + n_each * np.cumsum([0.0, *rounds.step_s])
    seconds: _Floats = np.interp(steps, ends, ends_s)
    return seconds


def _rounded(losses: _Floats) -> tuple[float | None, ...]:
    return tuple(short(loss, significant=5) for loss in losses.tolist())


MAX_ROUND_POINTS = 300
_Round = tuple[str, int]
_Relative = dict[_Round, float]


def rounds_over_time_of(rows: Sequence[Row], usable: Mapping[str, Sequence[Record]]) -> RoundsOverTime | None:
    """Windows of all repeats relative to their strategy's median; None with fewer than two rounds."""
    windows = {row.strategy: dict(_windows(usable.get(row.strategy, ()))) for row in rows}
    medians_s = {name: median(steps_s.values()) for name, steps_s in windows.items() if steps_s}
    relative = {
        name: {key: step_s / median_s for key, step_s in windows[name].items()}
        for name, median_s in medians_s.items()
    }
    repeats = _repeats(usable)
    order = {block: place for place, block in enumerate(repeats)}
    rounds = sorted(
        {key for line in relative.values() for key in line}, key=lambda key: (order[key[0]], key[1])
    )
    if len(rounds) < 2:
        return None
    n_each = -(-len(rounds) // MAX_ROUND_POINTS)
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
    )


def _windows(records: Sequence[Record]) -> Iterator[tuple[_Round, float]]:
    """Round of each window, as block and number, and its median step time."""
    for record in records:
        if record.rounds is not None:
            for number, step_s in enumerate(record.rounds.step_s):
                if 0.0 < step_s < math.inf:
                    yield (record.rounds.block, number), step_s


def _repeats(usable: Mapping[str, Sequence[Record]]) -> dict[str, int]:
    records = sorted((r for of_case in usable.values() for r in of_case), key=lambda record: record.order)
    repeats: dict[str, int] = {}
    for record in records:
        if record.rounds is not None:
            repeats.setdefault(record.rounds.block, record.repeat)
    return repeats


def _mean_of(line: _Relative, point: Sequence[_Round]) -> float | None:
    known = [line[key] for key in point if key in line]
    return short(fmean(known), significant=4) if known else None


def memory_of(rows: Sequence[Row], usable: Mapping[str, Sequence[Record]]) -> tuple[WorkerMemory, ...]:
    """Peak memory of each worker, for each row with records of it."""
    memory = []
    for row in rows:
        records = usable.get(row.strategy, ())
        peaks = [r.peak_rss_bytes for r in records if r.peak_rss_bytes]
        n_workers = max(map(len, peaks), default=0)
        by_worker = [
            [peak for peak in column if peak is not None]
            for column in zip(*(peak for peak in peaks if len(peak) == n_workers), strict=True)
        ]
        if not any(by_worker):
            continue
        low, high = (tuple(limit(values, default=None) for values in by_worker) for limit in (min, max))
        memory.append(
            WorkerMemory(
                strategy=row.strategy,
                n=max(map(len, by_worker)),
                peak_bytes=tuple(round(fmean(values)) if values else None for values in by_worker),
                low=() if low == high else low,
                high=() if low == high else high,
                variable_bytes=next((r.variable_bytes for r in records if r.variable_bytes), None),
            )
        )
    return tuple(memory)


def curves_of(rows: Sequence[Row], contrasts: Contrasts) -> Curves:
    """Data of a comparison's charts.

    Args:
        rows: rows in the order of the report.
        contrasts: contrasts of these rows, with their records.
    """
    usable = contrasts.usable
    return Curves(
        trade_off=trade_off_of(rows, contrasts),
        losses=loss_curves_of(rows, usable),
        rounds=rounds_over_time_of(rows, usable),
        memory=memory_of(rows, usable),
    )
