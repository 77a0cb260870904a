"""The fixture `strategy_benchmark` where pytest-benchmark is not installed, or switched off."""

from __future__ import annotations

import pytest


@pytest.fixture
def strategy_benchmark() -> None:
    """Say what is missing."""
    pytest.fail(
        "strategy_benchmark needs the plugin pytest-benchmark, got none; `pip install pytest-benchmark`, and "
        "leave out `-p no:benchmark`",
        pytrace=False,
    )
