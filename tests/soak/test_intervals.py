"""Intervals hold what they promise: between two cases that are the same in all but name, few exclude 1."""

import csv
import io
import subprocess
import sys
from pathlib import Path

import pytest
from watched_run import watched

pytestmark = [pytest.mark.ray, pytest.mark.tensorflow, pytest.mark.timeout(3600)]

N_RUNS = 8
# Of eight intervals of 95 %, three or more miss with a probability of 0.6 %.
MOST_MISSES = 2
# Both make one bucket of all gradients.
SAME = "all-reduce:chunk_size=128,all-reduce:chunk_size=127"


def test_a_strategy_is_as_fast_as_itself(tmp_path: Path) -> None:
    misses = 0
    for number in range(N_RUNS):
        out = tmp_path / str(number)
        arguments = ["--workloads", "digits-mlp", "--strategies", SAME, "--steps", "200", "--repeats", "4"]
        with watched(
            ["run", "quickstart", *arguments, "--set", f"measure.seed={number}", "--out", str(out)], tmp_path
        ) as run:
            status, _, errors = run.finish(600.0)
        assert status == 0, errors
        low, high = interval(out)
        misses += not low <= 1.0 <= high
    assert misses <= MOST_MISSES


def interval(run_dir: Path) -> tuple[float, float]:
    """Of the second case's rate, in multiples of the first one's."""
    done = subprocess.run(
        [sys.executable, "-m", "harness.cli", "report", str(run_dir), "--format", "csv"],
        check=True,
        capture_output=True,
        text=True,
    )
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    (row,) = [row for row in rows if row["ratio_low"]]
    return float(row["ratio_low"]), float(row["ratio_high"])
