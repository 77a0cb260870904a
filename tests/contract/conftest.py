"""Captures that the contract tests share."""

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def cases(shared: Path) -> Any:
    """Small instances of the shipped workloads, captured on first use."""
    pytest.importorskip("tensorflow")
    from cases import Cases

    return Cases(shared / "cases")
