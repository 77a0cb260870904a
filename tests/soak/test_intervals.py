"""Intervals hold what they promise: of two cases that are the same few exclude 1, and 5 % are found."""

import json
import logging
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from watched_run import watched

pytestmark = [pytest.mark.ray, pytest.mark.tensorflow, pytest.mark.timeout(4 * 3600)]

LOG = logging.getLogger(__name__)
"""Shown as it goes on by `--log-cli-level=info`."""
RUN = ["run", "quickstart", "--workers", "2", "--aa", "--set", "compare.baseline=all-reduce"]
CASE = ["--workloads", "digits-cnn", "--strategies", "all-reduce"]

N_PAIRS = 20
# Of twenty intervals of 95 %, five or more miss with a probability of 0.3 %.
MOST_MISSES = 4
# What all runs share, such as who is opened first, no interval of one run would show.
LEAST_P = 0.001
N_SLOWED = 10
LEAST_FOUND = 9


@dataclass(frozen=True)
class Twin:
    """The twin's rate in multiples of the baseline's."""

    ratio: float
    low: float
    high: float
    n_repeats: int

    def __str__(self) -> str:
        return f"{self.ratio:.3f} ({self.low:.3f} to {self.high:.3f}), {self.n_repeats} repeats"


def test_a_strategy_is_as_fast_as_itself(tmp_path: Path) -> None:
    misses, logs = 0, []
    for number in range(N_PAIRS):
        twin = timed(tmp_path, number, [])
        logs.append(math.log(twin.ratio))
        misses += not twin.low <= 1.0 <= twin.high
        exact = scipy.stats.binomtest(misses, number + 1).proportion_ci()
        LOG.info("twin %s; %d of %d differ, %.1f to %.1f %%", twin, misses, number + 1, *percent(exact))
    assert misses <= MOST_MISSES
    together = scipy.stats.ttest_1samp(logs, 0.0)
    LOG.info("all twins together: %+.2f %%, p %.3f", 100 * np.mean(logs), together.pvalue)
    assert together.pvalue > LEAST_P


def test_a_slowdown_of_5_percent_is_found(tmp_path: Path) -> None:
    result = 0
    for number in range(N_SLOWED):
        twin = timed(
            tmp_path,
            number,
            ["--until-ci", "3%", "--set", "measure.until.at_most=10m"],
            PYTHONPATH=str(Path(__file__).with_name("slowed_twin")),
            SLOWED_BY="0.05",
            SLOWED_CASE=twin_case(),
        )
        result += twin.high < 1.0
        LOG.info("slowed twin %s; %d of %d found", twin, result, number + 1)
        assert twin.low <= 1.0, "called faster"
    assert result >= LEAST_FOUND


def twin_case() -> str:
    """Its id; the twin is the last of the cases."""
    done = answer(*RUN, *CASE, "--dry-run", "--json")
    return str(json.loads(done)["planned"][-1])


def answer(*arguments: str) -> str:
    """Output of a command."""
    command = [sys.executable, "-m", "harness.cli", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def timed(folder: Path, number: int, further: list[str], **environment: str) -> Twin:
    out = folder / str(number)
    seed = ["--set", f"measure.seed={number}"]
    with watched([*RUN, *CASE, *seed, *further, "--out", str(out)], folder, **environment) as run:
        status, _, errors = run.finish(1200.0)
    assert status == 0, errors
    report = json.loads(answer("report", str(out), "--format", "json"))
    rows = [row for table in report["comparisons"] for row in table["rows"]]
    (row,) = [row for row in rows if row["strategy"].endswith("aa=true")]
    interval = row["ratio"]["interval"]
    return Twin(row["ratio"]["value"], interval["low"], interval["high"], row["n_repeats"])


def percent(exact) -> tuple[float, float]:
    return 100 * exact.low, 100 * exact.high
