"""Errors of predicted steps: predicted ÷ measured − 1, and agreement on the order of strategies.

Source:
    Kendall 1938, "A new measure of rank correlation", Biometrika 30, for τ.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from statistics import fmean

import numpy as np

from reports.rows.report import Comparison, PredictionErrors, Residuals
from reports.rows.row import Row


def residuals_of(comparisons: Sequence[Comparison]) -> Residuals | None:
    """Errors of all predicted steps, each strategy's and of all together; None without any."""
    rows = [row for comparison in comparisons for row in predicted_rows(comparison)]
    if not rows:
        return None
    names = sorted({row.strategy for row in rows})
    orders = [tau for comparison in comparisons if (tau := rank_agreement(comparison)) is not None]
    return Residuals(
        overall=errors_of(rows),
        by_strategy=tuple(errors_of([row for row in rows if row.strategy == name], name) for name in names),
        rank_agreement=fmean(orders) if orders else None,
        n_orders=len(orders),
    )


def predicted_rows(comparison: Comparison) -> list[Row]:
    """Rows whose step was both predicted and measured."""
    return [row for row in comparison.rows if row.status == "ok" and row.prediction_error is not None]


def errors_of(rows: Sequence[Row], strategy: str = "") -> PredictionErrors:
    """Errors of one predicted row or more."""
    errors = np.array([row.prediction_error for row in rows], dtype=np.float64)
    return PredictionErrors(
        strategy=strategy,
        n=len(rows),
        median=float(np.median(np.abs(errors))),
        p90=float(np.quantile(np.abs(errors), 0.9)),
        mean=float(errors.mean()),
    )


def rank_agreement(comparison: Comparison) -> float | None:
    """Kendall's τ between the predicted and the measured order; None with fewer than two predictions."""
    steps = [
        (row.predicted_step_s.value, row.p50_s.value)
        for row in predicted_rows(comparison)
        if row.predicted_step_s is not None and row.p50_s is not None
    ]
    signs = [np.sign((a[0] - b[0]) * (a[1] - b[1])) for a, b in combinations(steps, 2)]
    return float(np.mean(signs)) if signs else None
