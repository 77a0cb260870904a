"""What curves of several comparisons are made of: each with the records behind its rows."""

from __future__ import annotations

from dataclasses import dataclass

from reports.contrasts import Contrasts
from reports.rows import Comparison
from reports.shapes import ComparedShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A comparison, the shape it is of, and how its strategies stand against each other.

    Attributes:
        run_number: place of its run in the report, from 0; copies of a run have one name in several places.
    """

    shape: ComparedShape
    comparison: Comparison
    contrasts: Contrasts
    run_number: int = 0
