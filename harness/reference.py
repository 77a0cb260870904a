"""What a strategy's first steps are compared with."""

from dataclasses import dataclass

from harness.equivalence import Yardstick
from harness.step_results import Returned


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A reference's outcome.

    Attributes:
        yardstick: its state, to compare states with.
        losses: of every step on the way there.
        results: what the last step returned beside its loss.
    """

    yardstick: Yardstick
    losses: tuple[float, ...]
    results: tuple[Returned, ...]
