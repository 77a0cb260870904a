"""Refusals of a step by what rewrites it, as errors that a run or a command has an answer to."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from harness.errors import UNSUPPORTED, CaseError, HarnessError, UsageError
from strategies.errors import CaptureError, GraphError, StrategyError


@contextmanager
def refusals_as(error_of: Callable[[str], HarnessError]) -> Iterator[None]:
    """Raise what is made of a refusal's line; a graph that breaks a rule is our own mistake, and stays so."""
    try:
        yield
    except (CaptureError, GraphError):
        raise
    except StrategyError as error:
        raise error_of(str(error)) from error


def unsupported(line: str) -> CaseError:
    """The failure of a case that a run skips."""
    return CaseError(UNSUPPORTED, line, stage="transform")


def strategy_error(line: str) -> UsageError:
    """The error of a command that was given a strategy which refuses the step."""
    return UsageError(line, field="strategy")


def dtype_error(line: str) -> UsageError:
    """The error of a command that was told to compute in types in which the step cannot."""
    return UsageError(line, field="dtype")
