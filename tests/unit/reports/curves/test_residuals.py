"""Errors of predictions, by hand."""

from pathlib import Path

import pytest
from synthetic_run import NONE, SINGLE, Case, write_run

from reports.compare import build
from reports.curves.residuals import rank_agreement
from reports.load import load
from reports.rows.report import Report
from reports.tables.figures import prediction_table
from reports.tables.predictions import prediction_texts, residual_table, residuals_text


def report_of(path: Path, *predicted: tuple[str, float, float | None], workload: str = "w") -> Report:
    """Report of strategies with their measured and predicted steps."""
    cases = [
        Case(workload=workload, strategy=name, p50_s=p50_s, noise=0.0, predicted_s=predicted_s)
        for name, p50_s, predicted_s in predicted
    ]
    return build(
        [
            load(
                write_run(
                    path / "run", [Case(workload=workload, **SINGLE), Case(workload=workload, **NONE), *cases]
                )
            )
        ]
    )


def test_errors_are_relative_to_measurements(tmp_path: Path) -> None:
    report = report_of(
        tmp_path, ("a", 0.010, 0.009), ("b", 0.020, 0.024), ("c", 0.030, 0.030), ("d", 0.04, None)
    )
    assert report.residuals is not None
    overall = report.residuals.overall
    assert overall.n == 3
    assert overall.median == pytest.approx(0.1, abs=0.002)
    assert overall.p90 == pytest.approx(0.18, abs=0.002)
    assert overall.mean == pytest.approx(0.1 / 3, abs=0.002)
    assert [errors.strategy for errors in report.residuals.by_strategy] == ["a", "b", "c"]
    assert (report.residuals.rank_agreement, report.residuals.n_orders) == (1.0, 1)
    assert residuals_text(report.residuals).startswith(
        "Half of 3 predictions are within 10 %, 90 % within 18 %"
    )
    assert [cell.text for cell in residual_table(report.residuals).rows[0]] == [
        "a",
        "1",
        "10 %",
        "10 %",
        "−10 %",
    ]


@pytest.mark.parametrize(
    ("predicted", "tau"), [((1, 2, 3), 1.0), ((3, 2, 1), -1.0), ((1, 3, 2), 1 / 3), ((1, 1, 2), 2 / 3)]
)
def test_rank_agreement_counts_pairs(tmp_path: Path, predicted: tuple[int, ...], tau: float) -> None:
    named = [
        (name, 0.01 * (i + 1), 0.01 * s) for i, (name, s) in enumerate(zip("abc", predicted, strict=True))
    ]
    (comparison,) = report_of(tmp_path, *named).comparisons
    assert rank_agreement(comparison) == pytest.approx(tau)


def test_one_prediction_has_an_error_and_no_order(tmp_path: Path) -> None:
    report = report_of(tmp_path, ("a", 0.010, 0.0125))
    (comparison,) = report.comparisons
    assert report.residuals is not None
    assert report.residuals.rank_agreement is None
    assert prediction_texts(comparison) == ["The error of the one prediction is +25 %"]
    table = prediction_table(comparison)
    assert table is not None
    assert [column.name for column in table.columns] == [
        "strategy",
        "predicted",
        "measured",
        "error",
        "limited by",
    ]
    (line,) = table.rows
    assert [cell.text for cell in line] == ["a", "12.5 ms", "10.0 ms", "+25 %", "computing"]


def test_without_predictions_there_is_nothing(tmp_path: Path) -> None:
    report = report_of(tmp_path, ("a", 0.010, None))
    assert report.residuals is None
    assert prediction_table(report.comparisons[0]) is None
    assert prediction_texts(report.comparisons[0]) == []
