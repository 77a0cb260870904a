"""The fixture `strategy_benchmark`, on top of pytest-benchmark's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.pytest_plugin.step_clock import CLOCK, Benchmark
from harness.pytest_plugin.strategy_benchmark import StrategyBenchmark


@pytest.fixture
def strategy_benchmark(
    request: pytest.FixtureRequest, benchmark: Benchmark, tmp_path: Path
) -> StrategyBenchmark:
    """A function that runs a case of an experiment and makes its windows the rounds of the benchmark."""
    clock = request.node.stash.get(CLOCK, None)
    if clock is None:
        pytest.fail(
            "strategy_benchmark must be an argument of the test or of its fixtures, got it by "
            "getfixturevalue, after pytest-benchmark was set up; name it as an argument",
            pytrace=False,
        )
    return StrategyBenchmark(benchmark=benchmark, clock=clock, folder=tmp_path)
