"""`stratbench demo`: the experiment that it runs, and what it prints after the result."""

from pathlib import Path

import pytest
from called import Pipeline, call, document


def test_demo_runs_the_shipped_experiment_and_names_the_next_commands(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline
) -> None:
    status, captured = call(capsys, "demo", "--out", "here")
    ((spec, options),) = pipeline.asked
    assert status == 0
    assert (spec.name, options.out) == ("demo", Path("here"))
    assert (len(spec.workloads), [str(ref) for ref in spec.strategies]) == (1, ["single", "ps", "all-reduce"])
    report, _, rest = captured.out.partition("Next, your own model:")
    assert "report: runs/x/report.html" in report
    assert "stratbench verify my_model.py:make --strategy all-reduce" in rest


def test_demo_as_json_is_the_document_of_a_run(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline
) -> None:
    _, captured = call(capsys, "demo", "--json")
    assert document(captured) == pipeline.outcome.to_document()
