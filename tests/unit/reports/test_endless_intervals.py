"""An interval without an end, of repeats that differ by orders of magnitude, in every medium that is text."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from synthetic_run import SINGLE, Case, write_run

import reports
from harness.records.checksums import sealed, unsealed
from reports.compare import build
from reports.load import load
from reports.pages.terminal import terminal_tables


@pytest.fixture(scope="module")
def wild(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cases = [Case(workload="w", **SINGLE), Case(workload="w", strategy="ps")]
    path = write_run(tmp_path_factory.mktemp("wild") / "run", cases)
    results = path / "results.jsonl"
    lines = [unsealed(json.loads(line)) for line in results.read_text().splitlines()]
    for line in lines:
        assert isinstance(line["step_s"], dict)
        line["step_s"]["p50"] = {0: 1e-250, 1: 1.0, 2: 1e250}[line["repeat"]]  # type: ignore[index]
    results.write_text("".join(json.dumps(sealed(line)) + "\n" for line in lines))
    return path


def test_json_has_null_for_it(wild: Path) -> None:
    text = reports.render([wild], "json")
    assert "Infinity" not in text
    assert "NaN" not in text
    rows = json.loads(text)["comparisons"][0]["rows"]
    assert any(row["rate"]["interval"] and row["rate"]["interval"]["high"] is None for row in rows)


def test_csv_is_numbers_or_nothing(wild: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(reports.render([wild], "csv"))))
    assert rows
    cells = {cell for row in rows for cell in row.values()}
    assert not {"inf", "-inf", "nan"} & cells
    assert any(row["examples_per_s_low"] and not row["examples_per_s_high"] for row in rows)


def test_people_read_a_sign(wild: Path) -> None:
    text = reports.render([wild], "md")
    assert "–∞" in text
    for word in ("inf ", "nan", "NaN"):
        assert word not in text
    tables = terminal_tables(build([load(wild)]))
    shown = [cell for table in tables for row in table.rows for cell in row]
    assert not [cell for cell in shown if "inf" in cell or "nan" in cell]


def test_junit_can_be_read(wild: Path) -> None:
    text = reports.render([wild], "junit")
    cases = ET.fromstring(text).iter("testcase")
    assert all(float(case.attrib["time"]) >= 0 for case in cases)
    assert "nan" not in text
