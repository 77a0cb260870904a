"""The fixture `strategy_benchmark` if pytest-benchmark is not installed, or disabled."""

from __future__ import annotations

import pytest


@pytest.fixture
def strategy_benchmark() -> None:
    """Report that pytest-benchmark is missing."""
    pytest.fail(
        "strategy_benchmark needs the plugin pytest-benchmark, got none; `pip install pytest-benchmark`, and "
        "leave out `-p no:benchmark`",
        pytrace=False,
    )
