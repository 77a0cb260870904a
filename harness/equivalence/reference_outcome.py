"""Reference for a strategy's first steps."""

from dataclasses import dataclass

from harness.equivalence.separability import Separability
from harness.equivalence.step_results import Returned
from harness.equivalence.yardstick import Yardstick


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A reference's outcome.

    Attributes:
        yardstick: its state and losses, to compare others with.
        results: what the last step returned beside its loss.
        separability: whether its shards mean what the step means on the whole batch; None where nobody asked.
    """

    yardstick: Yardstick
    results: tuple[Returned, ...]
    separability: Separability | None = None
