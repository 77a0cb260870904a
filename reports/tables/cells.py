"""Cells of tables: a figure or word as text, and below it what it rests on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from reports.quantities import (
    MISSING,
    UNITS,
    count,
    digits,
    interval_of,
    plain,
    seconds,
    spread_of,
    times,
)
from reports.rows import Mean, Row
from reports.statistics import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A figure or word, and below it what it rests on; `value` is what readers sort by."""

    text: str
    note: str = ""
    value: float | None = None


def name_cell(row: Row) -> Cell:
    """The strategy of a row."""
    return Cell(text=row.strategy, note="baseline" if row.is_baseline else "")


def estimate_cell(figure: Estimate | None, show: Callable[[float | None], str]) -> Cell:
    """An estimate with its interval."""
    if figure is None:
        return Cell(text=MISSING)
    note = interval_of(figure, unit="seconds" if show is seconds else "")
    return Cell(text=show(figure.value), note=note, value=figure.value)


def ratio_cell(row: Row) -> Cell:
    """Speed relative to the baseline, with its interval and p-value."""
    if row.is_baseline:
        return Cell(text="1", note="baseline", value=1.0)
    if row.ratio is None:
        return Cell(text=MISSING)
    p_value = f"p={digits(row.ratio.p_value, significant=2)}" if row.ratio.p_value is not None else ""
    note = ", ".join(filter(None, (interval_of(row.ratio), p_value)))
    value = row.ratio.value if math.isfinite(row.ratio.value) else None
    return Cell(text=times(row.ratio.value), note=note, value=value)


def mean_cell(mean: Mean | None, *, unit: str = "number") -> Cell:
    """A mean over repeats with its range."""
    if mean is None:
        return Cell(text=MISSING)
    return Cell(text=UNITS.get(unit, plain)(mean.value), note=spread_of(mean, unit=unit), value=mean.value)


def loss_cell(mean: Mean | None, step: Mean | None) -> Cell:
    """A loss with the number of its step: the later it is, the longer was the training before it."""
    cell = mean_cell(mean)
    if mean is None or step is None:
        return cell
    first, last = count(step.low), count(step.high)
    at = f"step {first}" if first == last else f"steps {first} to {last}"
    return Cell(text=cell.text, note=f"{at}, {cell.note}", value=cell.value)
