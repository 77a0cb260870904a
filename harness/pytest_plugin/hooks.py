"""Hooks of pytest: the fixture, and the timer of each benchmark of a case.

The engine measures its steps itself. pytest-benchmark reads its timer before and after each round. So a timer
that returns durations measured elsewhere turns these into its rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Protocol

import pytest

from harness.errors import MissingError


class Benchmark(Protocol):
    """Part of pytest-benchmark's fixture `benchmark` that is used here."""

    disabled: bool
    group: str | None
    extra_info: dict[str, object]

    def pedantic(self, target: Callable[[], object], *, rounds: int = 1) -> object:
        """Call the target so often, each time timed; if benchmarks are disabled, once and untimed."""


class StepClock:
    """Timer that advances by one duration from each reading to the next, and then restarts."""

    __name__ = "stratbench"

    def __init__(self) -> None:
        self._readings: list[float] = []
        self._n_read = 0

    def set(self, durations_s: Sequence[float]) -> None:
        self._readings = [reading for duration_s in durations_s for reading in (0.0, duration_s)]
        self._n_read = 0

    def __call__(self) -> float:
        self._n_read += 1
        return self._readings[self._n_read - 1] if self._n_read <= len(self._readings) else 0.0

    @property
    def is_read_out(self) -> bool:
        """True if exactly the expected number of readings was taken."""
        return self._n_read == len(self._readings)


CLOCK = pytest.StashKey[StepClock]()


def record_rounds(benchmark: Benchmark, clock: StepClock, durations_s: Sequence[float]) -> None:
    """Make durations the rounds of a benchmark; if benchmarks are disabled, mark it as used.

    Args:
        clock: its timer.
        durations_s: seconds of each round, at least one.
    Raises:
        MissingError: this version of pytest-benchmark reads its timer at other times.
    """
    clock.set(durations_s)
    benchmark.pedantic(_nothing, rounds=len(durations_s))
    if not benchmark.disabled and not clock.is_read_out:
        raise MissingError(
            "pytest-benchmark must read its timer before and after each round, got "
            f"{metadata.version('pytest-benchmark')}, which does not; install 5.3.1",
            field="strategy_benchmark",
        )


def _nothing() -> None:
    """Do nothing: everything was done before."""


FIXTURE = "strategy_benchmark"
_PYTEST_BENCHMARK = ("benchmark", "pytest_benchmark.plugin")
"""Plugin names of pytest-benchmark: when installed, and with `-p pytest_benchmark.plugin`."""


def pytest_configure(config: pytest.Config) -> None:
    """Register the fixture, or, without pytest-benchmark, one that reports this."""
    name = "fixtures" if _has_pytest_benchmark(config) else "missing_pytest_benchmark"
    config.pluginmanager.import_plugin(f"harness.pytest_plugin.{name}")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give a test of a case the timer for its benchmark, in addition to the user's own options."""
    if FIXTURE not in getattr(item, "fixturenames", ()) or not _has_pytest_benchmark(item.config):
        return
    marker = item.get_closest_marker("benchmark")
    clock = StepClock()
    item.stash[CLOCK] = clock
    options = {**({} if marker is None else marker.kwargs), "timer": clock}
    # pytest-benchmark reads only the closest of its marks.
    item.add_marker(pytest.mark.benchmark(**options), append=False)


def _has_pytest_benchmark(config: pytest.Config) -> bool:
    return any(config.pluginmanager.hasplugin(name) for name in _PYTEST_BENCHMARK)
