"""Errors of predicted steps in sentences, and as a table by strategy."""

from __future__ import annotations

from collections.abc import Sequence

from reports.curves.residuals import errors_of, predicted_rows, rank_agreement
from reports.quantities import Cell, Table, percent, table_of
from reports.rows.report import Comparison, PredictionErrors, Residuals


def prediction_texts(comparison: Comparison) -> Sequence[str]:
    """Sentences on the errors of predicted steps of a comparison."""
    rows = predicted_rows(comparison)
    return [_errors_text(errors_of(rows), rank_agreement(comparison))] if rows else []


def residual_table(residuals: Residuals) -> Table:
    """Errors of predicted steps by strategy."""
    return table_of(
        "Errors of predicted steps over all comparisons of this report: predicted ÷ measured − 1. Median and "
        "90th percentile without signs; mean with signs: above 0, predictions are too slow",
        ("strategy", "n", "median", "90th percentile", "mean"),
        [_errors_row(errors) for errors in residuals.by_strategy],
    )


def residuals_text(residuals: Residuals) -> str:
    """Sentence on the errors of all predicted steps."""
    return _errors_text(residuals.overall, residuals.rank_agreement)


def _errors_text(errors: PredictionErrors, tau: float | None) -> str:
    order = "" if tau is None else f"; order of strategies: Kendall's τ = {tau:.2f} (1: as measured)"
    if errors.n == 1:
        return f"The error of the one prediction is {percent(errors.mean, signed=True)}"
    return (
        f"Half of {errors.n} predictions are within {percent(errors.median)}, 90 % within "
        f"{percent(errors.p90)}{order}"
    )


def _errors_row(errors: PredictionErrors) -> tuple[Cell, ...]:
    return (
        Cell(text=errors.strategy),
        Cell(text=str(errors.n), value=errors.n),
        Cell(text=percent(errors.median), value=errors.median),
        Cell(text=percent(errors.p90), value=errors.p90),
        Cell(text=percent(errors.mean, signed=True), value=errors.mean),
    )
