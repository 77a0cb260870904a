"""A job: a function that a worker process can import, called there with the process's state first.

Callers name it by the function itself, so that the type checker sees its arguments and its answer; what
crosses to the process is where the function is defined. Modules of jobs import TensorFlow in functions only.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Protocol, TypeAlias, TypeVar, TypeVarTuple

Value = TypeVar("Value")
Args = TypeVarTuple("Args")
Result = TypeVar("Result")


class JobState:
    """What jobs of one process leave for the jobs after them, one value of each type.

    Attributes:
        stack: closed when the process ends in order; a killed process does not get there.
    """

    def __init__(self) -> None:
        self.stack = ExitStack()
        self._values: dict[type, object] = {}

    def put(self, value: object) -> None:
        """Keep a value; it replaces one of the same type."""
        self._values[type(value)] = value

    def has(self, kind: type) -> bool:
        """Whether a value of a type is there."""
        return kind in self._values

    def get(self, kind: type[Value]) -> Value:
        """Return the value of a type that an earlier job has put.

        Raises:
            LookupError: no job has left one.
        """
        value = self._values.get(kind)
        if not isinstance(value, kind):
            raise LookupError(f"{kind.__name__}: a job before this one must make it, got none")
        return value


Job: TypeAlias = Callable[[JobState, *Args], Result]
"""A function of some module, or a `functools.partial` of one."""


class CallsJobs(Protocol):
    """Runs a job in a process of its own, or in one that only such jobs share."""

    def __call__(
        self, job: Job[*Args, Result], args: tuple[*Args], *, timeout_s: float, stage: str
    ) -> Result:
        """Run `job(state, *args)` and return what it returns.

        Args:
            stage: where a failure is said to have happened.
        """


def job_name(job: Job[*Args, Result]) -> str:
    """What to call a job in a message or a log's name."""
    return job_name(job.func) if isinstance(job, partial) else job.__name__
