"""One figure out of the repeats of a case."""

from __future__ import annotations

from collections.abc import Sequence

from harness.records import Record
from reports.rows import Mean
from reports.statistics import Estimate, estimate


def repeat_rate(record: Record) -> float | None:
    """Examples per second of one repeat's median step, or None when its line does not tell."""
    median = record.step_s.p50 if record.step_s else None
    if not median or not record.batch_size or median < 0 or record.batch_size < 0:
        return None
    return record.batch_size / median


def estimate_of(values: Sequence[float | None]) -> Estimate | None:
    """Geometric mean with interval of the repeats that have the figure, or None when none has."""
    present = [value for value in values if value is not None and value > 0]
    return estimate(present) if present else None


def mean_of(values: Sequence[float | None]) -> Mean | None:
    """Arithmetic mean and range of the repeats that have the figure, or None when none has."""
    present = [float(value) for value in values if value is not None]
    if not present:
        return None
    return Mean(value=sum(present) / len(present), low=min(present), high=max(present), n=len(present))


def mean_matrix(
    matrices: Sequence[tuple[tuple[float | None, ...], ...]],
) -> tuple[tuple[float | None, ...], ...] | None:
    """Mean of each cell over the repeats whose matrix has the usual shape."""
    if not matrices:
        return None
    size = len(matrices[0])
    square = [m for m in matrices if len(m) == size and all(len(line) == size for line in m)]
    if not square:
        return None

    def cell(i: int, j: int) -> float | None:
        mean = mean_of([m[i][j] for m in square])
        return mean.value if mean else None

    return tuple(tuple(cell(i, j) for j in range(size)) for i in range(size))
