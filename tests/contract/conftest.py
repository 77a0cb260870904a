"""Captures that the contract tests share, and what TensorFlow refuses by mistake."""

import warnings
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from harness.provision.failures import STEP_ID_COLLISION

_AGAIN = pytest.StashKey[bool]()


@pytest.fixture(scope="session")
def cases(shared: Path) -> Any:
    """Small instances of the shipped workloads, captured on first use."""
    pytest.importorskip("tensorflow")
    from cases import Cases

    return Cases(shared / "cases")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Run a test once more, on other servers, whose request was refused for its number."""
    try:
        return (yield)
    except Exception as error:
        if STEP_ID_COLLISION not in str(error) or _AGAIN in pyfuncitem.stash:
            raise
    pyfuncitem.stash[_AGAIN] = True
    warnings.warn(pytest.PytestWarning(f"{pyfuncitem.nodeid} runs again: {STEP_ID_COLLISION}"), stacklevel=1)
    return pyfuncitem.ihook.pytest_pyfunc_call(pyfuncitem=pyfuncitem)
