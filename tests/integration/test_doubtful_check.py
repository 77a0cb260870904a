"""A run whose workers differ from the reference by little: more references judge their steps again."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.verification.verification import BY_MORE_REFERENCES

pytestmark = [pytest.mark.ray, pytest.mark.tensorflow]

RUN_WITH_A_SMALL_FAULT = """
import sys
from dataclasses import replace

from harness.cli import main
from harness.verification import checks

first_steps = checks.first_steps


def slightly_wrong(*args, **options):
    outcome = first_steps(*args, **options)
    # Scalars are the optimizer's.
    values = {copy: value * (1 + 2e-4) if value.ndim else value for copy, value in outcome.values.items()}
    return replace(outcome, values=values)


checks.first_steps = slightly_wrong
sys.exit(main())
"""


def test_a_small_fault_is_judged_by_more_references_and_stays_wrong(tmp_path: Path) -> None:
    options = "--workloads digits-mlp --strategies ps --steps 2 --warmup 1 --repeats 1 --out out"
    options += " --set measure.window_s=0 --set measure.rounds=1 --set compare.baseline=ps"
    run = subprocess.run(
        [sys.executable, "-c", RUN_WITH_A_SMALL_FAULT, "run", "quickstart", *options.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "check: digits-mlp ps 2x1 repeat 0, by more references" in run.stderr
    record = json.loads((tmp_path / "out" / "results.jsonl").read_text())
    assert BY_MORE_REFERENCES in record["notes"]
    assert record["equivalence"]["equivalent"] is False
    assert " is off by " in record["equivalence"]["reason"]
