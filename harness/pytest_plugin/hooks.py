"""Hooks of pytest: which fixture there is, and the timer of each benchmark of a case."""

from __future__ import annotations

import pytest

from harness.pytest_plugin.step_clock import CLOCK, StepClock

FIXTURE = "strategy_benchmark"
_PYTEST_BENCHMARK = ("benchmark", "pytest_benchmark.plugin")
"""Its names as a plugin: as installed, and as `-p pytest_benchmark.plugin` has it."""


def pytest_configure(config: pytest.Config) -> None:
    """Register the fixture, or where pytest-benchmark is not in use the one that says so."""
    name = "fixtures" if _has_pytest_benchmark(config) else "missing_pytest_benchmark"
    config.pluginmanager.import_plugin(f"harness.pytest_plugin.{name}")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give a test of a case the timer that its benchmark reads, beside the user's own options for it."""
    if FIXTURE not in getattr(item, "fixturenames", ()) or not _has_pytest_benchmark(item.config):
        return
    marker = item.get_closest_marker("benchmark")
    clock = StepClock()
    item.stash[CLOCK] = clock
    options = {**({} if marker is None else marker.kwargs), "timer": clock}
    # pytest-benchmark reads the closest of its marks only.
    item.add_marker(pytest.mark.benchmark(**options), append=False)


def _has_pytest_benchmark(config: pytest.Config) -> bool:
    return any(config.pluginmanager.hasplugin(name) for name in _PYTEST_BENCHMARK)
