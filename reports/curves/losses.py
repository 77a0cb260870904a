"""Losses by step and by second of training, mean over repeats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from harness.records.record import Record
from reports.aggregate import timed_span
from reports.curves.thinning import short, spread
from reports.rows import LossCurve, Row

MAX_POINTS = 40
_Floats = npt.NDArray[np.float64]


def loss_curves_of(rows: Sequence[Row], usable: Mapping[str, Sequence[Record]]) -> tuple[LossCurve, ...]:
    """A curve for each row whose records hold losses of two steps at least."""
    return tuple(curve for row in rows if (curve := _curve(row, usable.get(row.strategy, ()))) is not None)


def _curve(row: Row, records: Sequence[Record]) -> LossCurve | None:
    known = [(record, steps) for record in records if (steps := _steps_of(record)) is not None]
    if not known:
        return None
    at = _common_steps([steps for _, steps in known])
    if len(at) < 2:
        return None
    losses = np.stack([np.interp(at, steps, _losses(record)) for record, steps in known])
    low, high = (_shown(limit(losses, axis=0)) for limit in (np.min, np.max))
    is_one = low == high
    return LossCurve(
        strategy=row.strategy,
        mark=row.mark.kind,
        n=len(known),
        at_steps=tuple(int(step) for step in at),
        at_s=tuple(
            float(f"{s:.5g}") for s in np.mean([_seconds_at(at, record) for record, _ in known], axis=0)
        ),
        mean=_shown(np.mean(losses, axis=0)),
        low=() if is_one else low,
        high=() if is_one else high,
    )


def _steps_of(record: Record) -> _Floats | None:
    """Number of the step of each loss: they are spread evenly over all steps after the warm-up."""
    span, losses = timed_span(record), record.loss
    if span is None or losses is None or not 2 <= len(losses) <= span[1] - span[0] + 1:
        return None
    # Rounded as the harness chose them: counted from 0.
    steps: _Floats = np.linspace(0, span[1] - span[0], len(losses)).round() + span[0]
    return steps


def _losses(record: Record) -> _Floats:
    return np.asarray([np.nan if loss is None else loss for loss in record.loss or ()], dtype=np.float64)


def _common_steps(steps: Sequence[_Floats]) -> _Floats:
    """Steps that all repeats made, of the repeat that has fewest there; evenly thinned."""
    first, last = max(each[0] for each in steps), min(each[-1] for each in steps)
    inside = [each[(each >= first) & (each <= last)] for each in steps]
    fewest = min(inside, key=len)
    places = spread(len(fewest), MAX_POINTS) if len(fewest) else []
    common: _Floats = fewest[places]
    return common


def _seconds_at(steps: _Floats, record: Record) -> _Floats:
    """Seconds that so many steps take: those of a window at its median, all others at the repeat's."""
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


def _shown(losses: _Floats) -> tuple[float | None, ...]:
    return tuple(short(loss, significant=5) for loss in losses.tolist())
