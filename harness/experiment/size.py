"""Numbers of cases and repeats of an experiment, counted before any of them is made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from harness.errors import UsageError
from harness.experiment.spec import SHAPE_KEYS

if TYPE_CHECKING:
    from harness.experiment.spec import ExperimentSpec

MAX_REPEATS = 10_000
"""In one experiment, of all cases together: a night's worth where the shortest takes four seconds."""


def require_few_combinations(spec: ExperimentSpec) -> None:
    """Refuse lists whose product is beyond what could be run even once, whatever filters would leave of it.

    Raises:
        UsageError: it is.
    """
    counts = _counts(spec)
    n_combinations = math.prod(counts.values())
    if n_combinations > MAX_REPEATS:
        product = " x ".join(f"{n:,} {field}" for field, n in counts.items() if n > 1)
        raise UsageError(
            f"must combine to at most {MAX_REPEATS:,} cases, got {product} = {n_combinations:,}; shorten "
            "these lists, or split them into several experiments",
            field="matrix",
        )


def require_few_repeats(spec: ExperimentSpec, n_cases: int) -> None:
    """Refuse more repeats of cases than could be run.

    Args:
        n_cases: those that the filters left.
    Raises:
        UsageError: there are more.
    """
    n_repeats = n_cases * spec.measure.repeats
    if n_repeats > MAX_REPEATS:
        raise UsageError(
            f"must come to at most {MAX_REPEATS:,} in all, got {spec.measure.repeats:,} measure.repeats x "
            f"{n_cases:,} cases = {n_repeats:,}; lower the repeats, or split the cases into several "
            "experiments",
            field="measure.repeats",
        )


def _counts(spec: ExperimentSpec) -> Mapping[str, int]:
    """Values of each field that is swept, by its path in the file."""
    cluster = spec.cluster
    return {
        "workloads": len(spec.workloads),
        "strategies": len(spec.strategies),
        **{f"cluster.{key}": len(getattr(cluster, field)) for field, key in SHAPE_KEYS.items()},
        "cluster.link.rate_mbit": len(cluster.rate_mbit),
        "measure.precision": len(spec.measure.precision),
        "measure.xla": len(spec.measure.xla),
        "measure.tf32": len(spec.measure.tf32),
        "faults": len(spec.scenarios),
    }
