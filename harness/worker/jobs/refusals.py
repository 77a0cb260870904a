"""Refusals of a step by rewriting passes, as errors that a run or a command handles."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from harness.errors import UNSUPPORTED, CaseError, HarnessError, UsageError
from strategies.errors import CaptureError, GraphError, StrategyError


@contextmanager
def refusals_as(error_of: Callable[[str], HarnessError]) -> Iterator[None]:
    """Turn a refusal into another error; a graph that breaks a rule is our bug, and is raised as it is."""
    try:
        yield
    except (CaptureError, GraphError):
        raise
    except StrategyError as error:
        raise error_of(str(error)) from error


def unsupported(line: str) -> CaseError:
    """Failure of a case that the run skips."""
    return CaseError(UNSUPPORTED, line, stage="transform")


def strategy_error(line: str) -> UsageError:
    """Error of a command whose strategy refuses the step."""
    return UsageError(line, field="strategy")


def dtype_error(line: str) -> UsageError:
    """Error of a command whose step cannot compute in the requested types."""
    return UsageError(line, field="dtype")
