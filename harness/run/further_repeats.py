"""Repeats that follow those that were asked for: who decides about them, and by what."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from harness.experiment.cases import Case
from harness.experiment.schedule import Slot
from harness.records.record import Record
from strategies.plan.schema import Plan

PlanOf: TypeAlias = Callable[[Case], Plan]
"""Plan of a case, or a `CaseError`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSoFar:
    """A site, and the run as it stands.

    Attributes:
        cases: of the site.
        records: of the run.
        first: number of the next repeat, and of its block, in the whole run.
        left_s: seconds until the last repeat is to end.
        plan_of: None before there are workers to capture on.
    """

    cases: Sequence[Case]
    records: Sequence[Record]
    first: int
    left_s: float
    plan_of: PlanOf | None = None


class FurtherRepeats(Protocol):
    """Decides which repeats follow those that were asked for, by what these have shown."""

    @property
    def at_most_s(self) -> float:
        """Seconds after a run's start by which the last of them is to end."""
        ...

    def slots(self, site: SiteSoFar) -> Sequence[Slot]:
        """The next repeats of a site, block by block; none where there are enough."""
        ...
