"""Tables behind the curves of losses, and behind rounds in the order of time."""

from __future__ import annotations

from reports.quantities import MISSING, count, digits, seconds, times
from reports.rows import Comparison, LossCurve, RoundLine, RoundsOverTime
from reports.tables.cells import Cell
from reports.tables.table import Table, table_of

_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


def loss_table(comparison: Comparison) -> Table | None:
    """Losses at five steps of each curve; None where no losses are stored."""
    curves = comparison.curves.losses
    if not curves:
        return None
    return table_of(
        "Loss by step: mean over repeats with their range, and when the step ends if all steps take the "
        "median of their window; steps count from the first of the warm-up",
        ("strategy", "n", "first", "at a quarter", "half", "three quarters", "last"),
        [
            (
                Cell(text=curve.strategy),
                Cell(text=str(curve.n), value=curve.n),
                *(_loss_cell(curve, round(share * (len(curve.mean) - 1))) for share in _SHARES),
            )
            for curve in curves
        ],
    )


def round_table(comparison: Comparison) -> Table | None:
    """Slowest round of each strategy and of all together; None without rounds."""
    rounds = comparison.curves.rounds
    if rounds is None:
        return None
    joined = f"; means of {rounds.rounds_per_point} rounds" if rounds.rounds_per_point > 1 else ""
    lines: list[tuple[Cell, ...]] = [
        (
            Cell(text=line.strategy),
            Cell(text=str(line.n), value=line.n),
            Cell(text=seconds(line.median_s), value=line.median_s),
            *_slowest_cells(line, rounds),
        )
        for line in rounds.lines
    ]
    worst = rounds.slowest
    if worst is not None:
        lines.append(
            (
                Cell(text="all", note=f"median of {worst.n_strategies}"),
                Cell(text=MISSING),
                Cell(text=MISSING),
                Cell(text=times(worst.relative)),
                Cell(text=f"repeat {worst.repeat}, round {worst.number}"),
            )
        )
    return table_of(
        "Rounds over time: the slowest of each strategy's windows relative to its own median, and the round "
        f"in which all were slowest together{joined}",
        ("strategy", "windows", "median step", "slowest", "when"),
        lines,
        words=("when",),
    )


def _loss_cell(curve: LossCurve, place: int) -> Cell:
    loss = curve.mean[place]
    when = f"step {count(curve.at_steps[place])}, {seconds(curve.at_s[place])}"
    if loss is None:
        return Cell(text="not finite", note=when)
    low, high = (limit[place] if limit else None for limit in (curve.low, curve.high))
    spread = "" if low is None or high is None else f", {digits(low)}\N{EN DASH}{digits(high)}"
    return Cell(text=digits(loss), note=f"{when}{spread}", value=loss)


def _slowest_cells(line: RoundLine, rounds: RoundsOverTime) -> tuple[Cell, Cell]:
    highest = max(each for each in line.relative if each is not None)
    place = line.relative.index(highest)
    when = f"repeat {rounds.repeats[place]}, round {rounds.numbers[place]}"
    return Cell(text=times(highest), value=highest), Cell(text=when)
