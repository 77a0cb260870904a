"""A run that goes on after its user has changed a file: what that file made is run again."""

from dataclasses import replace
from pathlib import Path

import pytest
from open_folders import made_record

from harness.experiment import chosen_strategy
from harness.experiment.cases import expand
from harness.experiment.resolve import resolve
from harness.pipeline import _outdated
from harness.records.facts.circumstances import Provenance
from harness.run.identity import files_of


def test_repeats_of_a_changed_file_are_outdated_and_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "mine.py"
    mine.write_text("FACTOR = 1\n")
    spec = resolve({"name": "x", "workloads": ["mine.py:Model", "wide-mlp"], "strategies": ["single", "ps"]})
    cases = expand(spec)
    records = tuple(
        made_record(case.id, provenance=Provenance(files=files_of(case)), workload=case.workload_name)
        for case in cases
    )
    assert _outdated(records, cases) == ()
    mine.write_text("FACTOR = 2\n")
    chosen_strategy._hash.cache_clear()  # as for the process of the next command
    assert {record.workload for record in _outdated(records, cases)} == {"mine.py:Model"}
    # Of records that do not say, and of cases that are none of the run's, nothing is known.
    unknown = [replace(records[0], provenance=None), replace(records[0], case="another")]
    assert _outdated(unknown, cases) == ()
