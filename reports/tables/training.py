"""Tables behind the curves of losses, and behind rounds in the order of time."""

from __future__ import annotations

from reports.quantities import MISSING, count, digits, seconds, times
from reports.rows import Comparison, LossCurve, RoundLine, RoundsOverTime
from reports.tables.cells import Cell
from reports.tables.table import Table, table_of

_SHARES = {
    "first": 0.0,
    "about a quarter": 0.25,
    "about half": 0.5,
    "about three quarters": 0.75,
    "last": 1.0,
}
_NEAR = 0.125
"""How far from a share of its curve a loss may stand and be shown there: no loss is near two of them."""


def loss_table(comparison: Comparison) -> Table | None:
    """Losses at up to five steps of each curve; None where no losses are stored."""
    curves = comparison.curves.losses
    if not curves:
        return None
    # Short curves have nothing near some shares, and columns without any loss are none.
    shares = {
        name: share
        for name, share in _SHARES.items()
        if any(_place_near(share, len(curve.mean)) is not None for curve in curves)
    }
    return table_of(
        "Loss by step: mean over repeats with their range, and when the step ends if all steps take the "
        "median of their window; steps count from the first of the warm-up",
        ("strategy", "n", *shares),
        [
            (
                Cell(text=curve.strategy),
                Cell(text=str(curve.n), value=curve.n),
                *(_loss_cell(curve, _place_near(share, len(curve.mean))) for share in shares.values()),
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


def _place_near(share: float, n: int) -> int | None:
    """The place of n that is nearest to a share of them; None where none is near."""
    place = round(share * (n - 1))
    return place if abs(place / (n - 1) - share) <= _NEAR else None


def _loss_cell(curve: LossCurve, place: int | None) -> Cell:
    if place is None:
        return Cell(text=MISSING)
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
