"""Cases of a run that have figures, and the messages for those that have none."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_run import NONE, Case, write_run

from harness.records.outcome import Equivalence
from reports.history.figures import figures_of
from reports.load import Run, load

STRATEGIES = ("single", "ps", "all-reduce")
CASES = tuple(Case(workload="w", strategy=strategy) for strategy in STRATEGIES)
REASON = "dense/kernel is off by 0.41"


def run_of(
    folder: Path,
    checks: Mapping[str, Equivalence],
    *,
    cases: Sequence[Case] = CASES,
    baseline: str = "single",
) -> Run:
    """A run of which some strategies were checked with another outcome, in their first repeat."""
    run = load(write_run(folder / "run", list(cases), minutes=(1.0, 1.05), baseline=baseline))
    records = tuple(
        replace(record, equivalence=checks[record.strategy])
        if record.strategy in checks and not record.repeat
        else record
        for record in run.records
    )
    return replace(run, stored=replace(run.stored, records=records))


@pytest.mark.parametrize(
    ("check", "status", "message"),
    [
        (
            Equivalence(checked=True, equivalent=False, reason=REASON),
            "not-equivalent",
            f"its result differs from a single-device run: {REASON}",
        ),
        (
            Equivalence(checked=True, equivalent=False),
            "not-equivalent",
            "its result differs from a single-device run",
        ),
        (
            Equivalence(checked=True, within_bound=False, reason=REASON),
            "beyond-bound",
            f"its error is beyond the bound of its compressors: {REASON}",
        ),
    ],
)
def test_of_a_case_that_failed_its_check_no_figure_counts(
    tmp_path: Path, check: Equivalence, status: str, message: str
) -> None:
    figures, (lost,) = figures_of(run_of(tmp_path, {"ps": check}))
    assert (lost.strategy, lost.status, lost.message) == ("ps", status, message)
    assert lost.is_wrong
    assert {figure.subject.strategy for figure in figures} == {"single", "all-reduce"}


def test_what_cannot_be_judged_keeps_its_figures(tmp_path: Path) -> None:
    undecidable = Equivalence(checked=True, equivalent=None, reason="rounding")
    assert figures_of(run_of(tmp_path, {"ps": undecidable}))[1] == ()


def test_a_control_must_fail_its_check_and_keeps_its_figures(tmp_path: Path) -> None:
    cases = (Case(workload="w", strategy="single"), Case(workload="w", **NONE))
    figures, lost = figures_of(run_of(tmp_path, {}, cases=cases))
    assert lost == ()
    assert {figure.subject.strategy for figure in figures} == {"single", "none"}


def test_a_ratio_to_a_case_that_failed_its_check_is_none(tmp_path: Path) -> None:
    wrong = Equivalence(checked=True, equivalent=False)
    metrics = []
    for folder, checks in (("sound", {}), ("wrong", {"ps": wrong})):
        figures, _ = figures_of(run_of(tmp_path / folder, checks, baseline="ps"))
        metrics.append({x.subject.metric for x in figures if x.subject.strategy == "all-reduce"})
    sound, beside_wrong = metrics
    assert "ratio" in sound
    assert beside_wrong == sound - {"ratio"}


def test_a_case_that_failed_is_told_by_its_error(tmp_path: Path) -> None:
    cases = [
        Case(workload="w", strategy="single"),
        Case(workload="w", strategy="ps", problems=dict.fromkeys(range(3), ("skipped", None))),
    ]
    _, (lost,) = figures_of(run_of(tmp_path, {}, cases=cases))
    assert (lost.status, lost.message, lost.is_wrong) == ("skipped", "skipped", False)
