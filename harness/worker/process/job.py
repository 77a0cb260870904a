"""Job: an importable function that a worker process calls with the process's state as first argument.

Callers pass the function itself, so that the type checker sees arguments and result; its module and name are
sent to the process. Modules of jobs import TensorFlow only within functions.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Protocol, TypeAlias, TypeVar, TypeVarTuple

Value = TypeVar("Value")
Args = TypeVarTuple("Args")
Result = TypeVar("Result")


class JobState:
    """Values that jobs of one process leave for later jobs, one of each type.

    Attributes:
        stack: closed if the process ends in order, not if it is killed.
    """

    def __init__(self) -> None:
        self.stack = ExitStack()
        self._values: dict[type, object] = {}

    def put(self, value: object) -> None:
        self._values[type(value)] = value

    def has(self, kind: type) -> bool:
        return kind in self._values

    def get(self, kind: type[Value]) -> Value:
        """Value of a type that an earlier job has stored.

        Raises:
            LookupError: no job has put one.
        """
        value = self._values.get(kind)
        if not isinstance(value, kind):
            raise LookupError(f"{kind.__name__}: a job before this one must make it, got none")
        return value


Job: TypeAlias = Callable[[JobState, *Args], Result]
"""A module's function, or a `functools.partial` of one."""


class CallsJobs(Protocol):
    """Runner of jobs in a process."""

    def __call__(
        self, job: Job[*Args, Result], args: tuple[*Args], *, timeout_s: float, stage: str
    ) -> Result:
        """Run `job(state, *args)` and return its result.

        Args:
            stage: name of this stage in failures.
        """


def job_name(job: Job[*Args, Result]) -> str:
    """Name of a job in messages and log files."""
    return job_name(job.func) if isinstance(job, partial) else job.__name__
