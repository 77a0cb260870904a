"""Who takes part in a run: tasks, replicas, their devices and their shares of the global batch."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

from strategies.errors import StrategyError

Device: TypeAlias = Literal["cpu", "gpu"]
UPDATER = 0
"""The task that updates what replicas share, and so loads and reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One copy of the step: its global rank, its place, its examples `[start, stop)` of the global batch."""

    rank: int
    task: int
    local: int
    device: str
    start: int
    stop: int

    @property
    def examples(self) -> int:
        """Examples in its shard."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The shape of a run, the same on every task.

    Attributes:
        replicas_per_task: count for each task; they may differ.
        batch_size: B, examples in the global batch.
        device: what a replica runs on.
    """

    replicas_per_task: tuple[int, ...]
    batch_size: int
    device: Device = "cpu"

    def __post_init__(self) -> None:
        if not self.replicas_per_task or min(self.replicas_per_task) < 1:
            raise StrategyError(
                f"topology: every task needs at least one replica, got {self.replicas_per_task}; "
                "drop the empty tasks"
            )
        if self.batch_size < self.n_replicas:
            raise StrategyError(
                f"batch_size: each replica needs an example, got {self.batch_size} examples for "
                f"{self.n_replicas} replicas; raise batch_size or lower workers or replicas"
            )

    @property
    def n_tasks(self) -> int:
        """W, the number of worker processes."""
        return len(self.replicas_per_task)

    @property
    def n_replicas(self) -> int:
        """N, replicas in all tasks together."""
        return sum(self.replicas_per_task)

    def replicas(self) -> tuple[Replica, ...]:
        """All replicas by rank; the first B mod N of them hold one example more."""
        return _replicas(self)

    def local_replicas(self, task: int) -> tuple[Replica, ...]:
        """The replicas of one task."""
        return tuple(replica for replica in self.replicas() if replica.task == task)

    def host_device(self, task: int) -> str:
        """The device of a task that holds what belongs to no replica."""
        return f"{task_device(task)}/device:CPU:0"


# Costs and passes ask for each variable.
@lru_cache(maxsize=64)
def _replicas(topology: Topology) -> tuple[Replica, ...]:
    share, extra = divmod(topology.batch_size, topology.n_replicas)
    made: list[Replica] = []
    start = 0
    for task, count in enumerate(topology.replicas_per_task):
        for local in range(count):
            rank = len(made)
            stop = start + share + (rank < extra)
            device = f"{task_device(task)}/device:{topology.device.upper()}:{local}"
            made.append(Replica(rank=rank, task=task, local=local, device=device, start=start, stop=stop))
            start = stop
    return tuple(made)


def task_device(task: int) -> str:
    """TensorFlow's name of a task."""
    return f"/job:worker/replica:0/task:{task}"
