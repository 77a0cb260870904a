"""Run folders that the report tests share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from synthetic_run import Case, full_cases, write_run

from reports.compare import build
from reports.load import load
from reports.rows.report import Comparison


@pytest.fixture(scope="session")
def full_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything at once, with a last line that was being written when the run was killed."""
    path = write_run(tmp_path_factory.mktemp("full") / "run", full_cases())
    with (path / "results.jsonl").open("a") as stream:
        stream.write('{"schema":1,"run":"half')
    return path


@pytest.fixture
def compare(tmp_path: Path) -> Callable[..., Comparison]:
    """The one comparison of a small run."""

    def make(cases: list[Case], **options: object) -> Comparison:
        path = write_run(tmp_path / "run", cases, **options)  # type: ignore[arg-type]
        (comparison,) = build([load(path)]).comparisons
        return comparison

    return make
