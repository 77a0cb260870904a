"""Steps that a report shows: of which repeats, and how many of each, so that a page stays readable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from harness.records.record import Record
from reports.load import MAX_SHOWN_REPEATS, MAX_SHOWN_STEPS, Run
from reports.rows.evidence import StepSeries
from reports.rows.report import LeftOut

MOST_STEPS = 16_000
"""Of all repeats in a report."""
LEAST_STEPS = 24
"""Of a repeat that is shown: fewer show no course."""


class StepReader(Protocol):
    """A reader of the steps of one repeat, thinned evenly to `most`."""

    def __call__(self, run: Run, record: Record, /, *, most: int = ...) -> StepSeries | LeftOut: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShares:
    """Shares of a report's steps: of how many repeats of a row, and how many of a repeat."""

    repeats: int
    steps: int

    @classmethod
    def of(cls, n_usable: Sequence[int]) -> StepShares:
        """The shares that leave as many repeats to see as possible, and then as many steps.

        Args:
            n_usable: repeats with steps, of each row.
        """

        def n_shown(repeats: int) -> int:
            return sum(min(repeats, n) for n in n_usable)

        fitting = (r for r in range(MAX_SHOWN_REPEATS, 1, -1) if LEAST_STEPS * n_shown(r) <= MOST_STEPS)
        repeats = next(fitting, 1)
        steps = MOST_STEPS // max(1, n_shown(repeats))
        steps = max(LEAST_STEPS, min(MAX_SHOWN_STEPS, steps))
        return cls(repeats=repeats, steps=steps)


class ShownSteps:
    """Steps of one row after the other, until a report has as many as it shows."""

    def __init__(self, read: StepReader, shares: StepShares) -> None:
        self._read = read
        self._shares = shares
        self._n_steps = 0
        self.n_not_shown = 0

    def of(self, run: Run, usable: Sequence[Record], left_out: list[LeftOut]) -> tuple[StepSeries, ...]:
        """Steps of the usable repeats of a row, evenly spread over them.

        Args:
            left_out: what has no steps is added to it, each once.
        """
        ordered = sorted(usable, key=lambda record: record.repeat)
        chosen = ordered[:: -(-len(ordered) // self._shares.repeats) or 1]
        self.n_not_shown += len(ordered) - len(chosen)
        shown: list[StepSeries] = []
        for record in chosen:
            if self._n_steps + self._shares.steps > MOST_STEPS:
                self.n_not_shown += 1
                continue
            steps = self._read(run, record, most=self._shares.steps)
            if isinstance(steps, StepSeries):
                shown.append(steps)
                self._n_steps += len(steps.seconds)
            else:
                item = replace(steps, where=f"{run.name}: {steps.where}")
                # `single` belongs to several shapes; its missing file is said once.
                if all(item.where != other.where for other in left_out):
                    left_out.append(item)
        return tuple(shown)

    def left_out(self) -> tuple[LeftOut, ...]:
        """What is not shown for want of room, where that is more than a page says by itself."""
        if not self.n_not_shown or self._shares.repeats == MAX_SHOWN_REPEATS:
            return ()
        why = (
            f"those of {self.n_not_shown:,} repeats are not shown: a report shows at most {MOST_STEPS:,} "
            f"steps, and at least {LEAST_STEPS} of a repeat"
        )
        return (LeftOut(where="step times", why=why),)
