"""Captures that the contract tests share, and what TensorFlow refuses by mistake."""

import warnings
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

# TensorFlow's master gives each request a number of its own, the first of a generator that it seeds with 32
# random bits for every step, and a server refuses a number that is among the last 100000 it has seen: of
# 10000 requests to one server, two are alike in one case of a hundred (pytorch/xla#4084 is the same).
_MISTAKEN = "The same RunGraph (Worker) request was received twice"
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
        if _MISTAKEN not in str(error) or _AGAIN in pyfuncitem.stash:
            raise
    pyfuncitem.stash[_AGAIN] = True
    warnings.warn(pytest.PytestWarning(f"{pyfuncitem.nodeid} runs again: {_MISTAKEN}"), stacklevel=1)
    return pyfuncitem.ihook.pytest_pyfunc_call(pyfuncitem=pyfuncitem)
