"""Rules against faults: the rows of a report, and that they are there in each medium."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_run import NONE, SINGLE, Case, write_run

from harness.records.outcome import Aggregated, Evaluation, Failure
from reports.compare import build
from reports.load import load
from reports.pages.data import to_csv, to_json
from reports.pages.markdown import to_markdown
from reports.pages.page import to_html
from reports.rows.report import FaultMatrix, Report
from reports.tables.curves import fault_table, front_line
from reports.tables.figures import rule_table

BAD = "<i>flip|</i>"
DIVERGED = Failure(type="non-finite-loss", message="the loss is not finite: inf", stage="run")

MatrixOf = Callable[[list[Case]], FaultMatrix]


def rule(f: int, n_faulty: int = 0, *, selects: bool = False) -> Aggregated:
    return Aggregated(
        rule="krum" if selects else "median",
        n=5,
        f=f,
        n_faulty=n_faulty,
        rule_s=0.002,
        mean_s=0.001,
        n_steps=100,
        chosen=(50, 50, 0, 0, 0) if selects else (100,) * 5,
        not_finite=(0, 0, 0, 0, 25),
        selects=selects,
    )


def case(
    strategy: str, scenario: str, accuracy: float | None, aggregation: Aggregated, *, step_s: float = 0.01
) -> Case:
    evaluation = None if accuracy is None else Evaluation(step=105, metrics={"accuracy": accuracy})
    return Case(
        workload="digits-cnn",
        strategy=strategy,
        class_="statistical",
        workers=5,
        p50_s=step_s,
        scenario=scenario,
        faults=("worker 4: sign-flip",) if scenario else (),
        evaluation=evaluation,
        aggregation=aggregation,
        problems={} if accuracy is not None else dict.fromkeys(range(3), ("failed", DIVERGED)),
    )


@pytest.fixture
def report(tmp_path: Path) -> Report:
    cases = [
        case("mean", "", 0.9, rule(0)),
        case("median", "", 0.89, rule(2), step_s=0.02),
        case("krum", "", 0.8, rule(1, selects=True), step_s=0.03),
        case("mean", BAD, None, rule(0, 1)),
        case("median", BAD, 0.85, rule(2, 1), step_s=0.02),
        case("krum", BAD, 0.7, rule(1, 1, selects=True), step_s=0.03),
    ]
    return build([load(write_run(tmp_path / "run", cases, baseline="mean"))])


@pytest.fixture
def matrix(report: Report) -> FaultMatrix:
    (only,) = report.fault_matrices
    return only


def test_scenarios_are_compared_apart(report: Report) -> None:
    assert [comparison.scenario for comparison in report.comparisons] == ["", BAD]
    assert [comparison.baseline == "mean" for comparison in report.comparisons] == [True, False]


def test_a_strategy_has_a_line_and_a_scenario_a_column(matrix: FaultMatrix) -> None:
    assert [name for name, _ in matrix.scenarios] == ["no faults", BAD]
    lines = {line.strategy: line for line in matrix.lines}
    (_, broken), (_, compared) = lines["mean"].cells, lines["median"].cells
    assert broken is not None
    assert compared is not None
    assert (broken.outcome, broken.value, broken.void) == ("diverged", None, True)
    assert compared.value is not None
    assert (compared.value.value, compared.void) == (0.85, False)
    assert lines["median"].relative_rate == pytest.approx(0.5, rel=0.05)
    assert lines["median"].worst == 0.85
    assert lines["mean"].worst is None


def test_the_front_has_what_nothing_else_beats(matrix: FaultMatrix) -> None:
    assert {line.strategy for line in matrix.lines if line.on_front} == {"median"}


def test_rules_tell_what_they_cost_and_chose(report: Report) -> None:
    table = rule_table(report.comparisons[0])
    assert table is not None
    rows = {row[0].text: [cell.text for cell in row] for row in table.rows}
    assert rows["krum"][-2:] == ["0.250", "50 50 0 0 0"]
    assert rows["median"][-1] == "all that are finite"
    assert rows["median"][3] == "2.00"


def test_every_medium_has_the_matrix_and_escapes_names(report: Report, matrix: FaultMatrix) -> None:
    html, markdown = to_html(report), to_markdown(report)
    assert BAD not in html
    assert "&lt;i&gt;flip|&lt;/i&gt;" in html
    assert "Accuracy under faults" in html
    assert "Best worst-case accuracy for its speed: " in html
    assert "With faults no strategy computes" not in html.partition("stratbench-data")[0]
    assert "diverged" in markdown
    assert BAD not in markdown
    assert BAD in to_csv(report)
    assert '"fault_matrices"' in to_json(report)
    assert len(fault_table(matrix).rows) == 3


@pytest.fixture
def matrix_of(tmp_path: Path) -> MatrixOf:
    """The one matrix of a small run."""

    def make(cases: list[Case]) -> FaultMatrix:
        (only,) = build([load(write_run(tmp_path / "run", cases, baseline="mean"))]).fault_matrices
        return only

    return make


def test_one_device_and_a_control_by_themselves_are_no_scenario(matrix_of: MatrixOf) -> None:
    beside = [Case(workload="digits-cnn", **SINGLE), Case(workload="digits-cnn", workers=5, **NONE)]
    matrix = matrix_of([*beside, case("median", BAD, 0.85, rule(2, 1)), case("krum", BAD, 0.7, rule(1, 1))])
    assert [name for name, _ in matrix.scenarios] == [BAD]
    assert (matrix.shape, matrix.baseline) == (
        "5 workers, 1 replica each, CPU, local provider, batch 64",
        None,
    )


def test_without_a_scenario_free_of_faults_the_best_worst_figure_is_named(matrix_of: MatrixOf) -> None:
    matrix = matrix_of(
        [
            case("median", BAD, 0.85, rule(2, 1)),
            case("krum", BAD, 0.7, rule(1, 1)),
            case("mean", BAD, 0.99, rule(0, 1)),
        ]
    )
    assert front_line(matrix) == ("Best worst-case accuracy: median (0.850); speed was not measured.")


def test_that_no_strategy_has_a_figure_is_said_of_none_within_its_bound(matrix_of: MatrixOf) -> None:
    matrix = matrix_of([case("mean", BAD, 0.5, rule(0, 1)), case("median", BAD, None, rule(2, 1))])
    assert front_line(matrix) == "No accuracy under faults that any rule tolerates."


def with_loss(case_before: Case, loss: float) -> Case:
    return replace(case_before, evaluation=Evaluation(step=105, metrics={"loss": loss}))


def test_a_perfect_figure_of_zero_is_on_the_front(matrix_of: MatrixOf) -> None:
    cases = [
        with_loss(case("median", scenario, 0.9, rule(2, n_faulty)), 0.0)
        for scenario, n_faulty in (("", 0), (BAD, 1))
    ]
    matrix = matrix_of([*cases, with_loss(case("krum", BAD, 0.9, rule(1, 1)), 0.5)])
    lines = {line.strategy: line for line in matrix.lines}
    assert lines["median"].worst == 0.0
    assert lines["median"].on_front
    assert front_line(matrix).startswith("Best worst-case loss for its speed: median (0.000 at 1")


@pytest.mark.parametrize("n_diverged", [1, 3])
def test_one_repeat_that_went_to_pieces_makes_a_cell_diverged(matrix_of: MatrixOf, n_diverged: int) -> None:
    some = dict.fromkeys(range(n_diverged), ("failed", DIVERGED))
    matrix = matrix_of(
        [
            case("median", "", 0.9, rule(2)),
            replace(case("median", BAD, 0.85, rule(2, 1)), problems=some),
            case("krum", "", 0.8, rule(1)),
            case("krum", BAD, 0.7, rule(1, 1)),
        ]
    )
    lines = {line.strategy: line for line in matrix.lines}
    cell = lines["median"].cells[1]
    assert cell is not None
    assert (cell.value, cell.outcome, cell.note) == (None, "diverged", f"{n_diverged} of 3 repeats")
    assert not lines["median"].on_front
    outputs = {cells[0].text: cells for cells in fault_table(matrix).rows}
    assert (outputs["median"][2].text, outputs["median"][2].note) == (
        "diverged",
        f"{n_diverged} of 3 repeats",
    )
    assert (outputs["median"][3].text, outputs["median"][3].value) == ("diverged", None)
    assert front_line(matrix).startswith("Best worst-case accuracy for its speed: krum (0.700 at ")


def test_figures_sort_as_numbers(matrix: FaultMatrix) -> None:
    for line, cells in zip(matrix.lines, fault_table(matrix).rows, strict=True):
        assert [cell.value for cell in cells[3:]] == [line.worst, line.relative_rate, line.payload_bytes]
