"""Stands in for the processes of a case: no job runs, yet each must be asked as its function wants to be."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from harness.worker.process.job import JobState


class FakeProcesses(ABC):
    """A `ProcessSet` whose answers come from the test."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self.hosts = tuple(hosts)
        self.pids = tuple(range(1, len(hosts) + 1))

    @abstractmethod
    def answer(self, job: Any, per_worker_args: Sequence[Any], stage: str) -> list[Any]:
        """Answers of the processes."""

    def call(
        self, job: Any, per_worker_args: Sequence[Any], *, timeout_s: float, stage: str = "run"
    ) -> list[Any]:
        assert len(per_worker_args) == len(self.pids)
        for args in per_worker_args:
            require_call(job, args)
        return self.answer(job, per_worker_args, stage)

    def call_one(self, worker: int, job: Any, args: Any, *, timeout_s: float, stage: str = "run") -> Any:
        raise AssertionError(job)


def require_call(job: Any, args: Sequence[Any]) -> None:
    """Raise TypeError where a job cannot be called like that."""
    inspect.signature(job).bind(JobState(), *args)
