"""What a figure rests on: the repeats behind a mean, and whether a strategy computes the right thing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MarkKind = Literal[
    "equivalent",
    "not-equivalent",
    "within-bound",
    "beyond-bound",
    "undecidable",
    "control",
    "twin",
    "not-checked",
    "statistical",
    "reference",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """Arithmetic mean of the repeats that stored a figure, with their least and greatest."""

    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Whether a strategy computes the right thing, and how that is known.

    `blind` marks a control that passed the check: on that workload the check would pass anything.
    `undecidable` names the variables of which the check could say nothing.
    """

    kind: MarkKind
    explanation: str
    max_update_error: float | None
    noise_floor: float | None
    tolerance: float | None
    undecidable: tuple[str, ...] = ()
    blind: bool = False

    @property
    def proven(self) -> bool:
        """Whether the strategy may win: shown to keep what it promises, or the reference itself."""
        return self.kind in ("equivalent", "within-bound", "reference")
