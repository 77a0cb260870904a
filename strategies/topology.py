"""Topology of a run: tasks, replicas, their devices and their shares of the global batch."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Literal, TypeAlias

from strategies.errors import StrategyError

Device: TypeAlias = Literal["cpu", "gpu", "tpu"]
UPDATER = 0
"""Task that updates, loads and reads the variables that replicas share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A copy of the step: global rank, place, and its examples `[start, stop)` of the global batch."""

    rank: int
    task: int
    local: int
    device: str
    start: int
    stop: int

    @property
    def examples(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Examples `[start, stop)` that a replica processes at once: its whole share, or one micro-batch.

    Attributes:
        rank: index among all shards, which selects its random state; equals the replica's rank without
            micro-batches.
        turn: index among its replica's micro-batches.
    """

    rank: int
    replica: Replica
    turn: int
    start: int
    stop: int

    @property
    def examples(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskKinds:
    """Tasks of a run by their shares of the batch: tasks of one kind have as many replicas and examples.

    Attributes:
        examples: kind → number of examples of each replica.
        of_task: kind of each task.
    """

    examples: tuple[tuple[int, ...], ...]
    of_task: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Shape of a run, the same on every task.

    Attributes:
        replicas_per_task: number of replicas of each task; tasks may differ.
        batch_size: B, examples in the global batch.
        device: type of each replica's device.
        micro_batches: k, number of micro-batches into which a replica splits its examples.
        global_statistics: True if layers normalise with statistics of the whole batch.
        merges_rows: True if updates use the sum of a sparse gradient's rows for each id.
        shares_devices: True if some replicas are logical devices of one physical device.
    """

    replicas_per_task: tuple[int, ...]
    batch_size: int
    device: Device = "cpu"
    micro_batches: int = 1
    global_statistics: bool = False
    merges_rows: bool = False
    shares_devices: bool = False

    def __post_init__(self) -> None:
        if not self.replicas_per_task or min(self.replicas_per_task) < 1:
            raise StrategyError(
                f"topology: every task needs at least one replica, got {self.replicas_per_task}; "
                "drop the empty tasks"
            )
        if self.batch_size < self.n_shards and self.micro_batches > 1:
            raise StrategyError(
                f"batch_size: each micro-batch needs an example, got {self.batch_size} examples for "
                f"{self.n_replicas} replicas with accumulate={self.micro_batches}; raise batch_size or lower "
                "accumulate, workers or replicas"
            )
        if self.batch_size < self.n_replicas:
            raise StrategyError(
                f"batch_size: each replica needs an example, got {self.batch_size} examples for "
                f"{self.n_replicas} replicas; raise batch_size or lower workers or replicas"
            )

    @property
    def n_tasks(self) -> int:
        return len(self.replicas_per_task)

    @property
    def n_replicas(self) -> int:
        return sum(self.replicas_per_task)

    @property
    def n_shards(self) -> int:
        return self.n_replicas * self.micro_batches

    @property
    def nccl_mistake(self) -> tuple[str, str] | None:
        """Requirement of NCCL that these replicas do not meet, and their state; None if NCCL can sum."""
        if self.device != "gpu":
            return "GPUs", f"device {self.device}"
        if self.shares_devices:
            return "a GPU for each replica", "replicas that share one"
        return None

    def replicas(self) -> tuple[Replica, ...]:
        """All replicas by rank; the first B mod N have one example more."""
        return _replicas(self)

    def local_replicas(self, task: int) -> tuple[Replica, ...]:
        return _replicas_by_task(self)[task]

    def kinds(self) -> TaskKinds:
        """Kinds of tasks: two or three if all tasks have as many replicas, because the batch is uneven."""
        return _kinds(self)

    def shards(self) -> tuple[Shard, ...]:
        """All shards by rank; a replica's differ by one example at most."""
        return _shards(self)

    def local_shards(self, task: int) -> tuple[Shard, ...]:
        return tuple(shard for shard in self.shards() if shard.replica.task == task)

    def collective_order(self) -> tuple[int, ...]:
        """Ranks in the order of TensorFlow's collectives: tasks sorted by name as text."""
        ordered = sorted(self.replicas(), key=lambda r: (str(r.task), r.local))
        return tuple(replica.rank for replica in ordered)

    def host_device(self, task: int) -> str:
        """Device of a task for what belongs to no replica."""
        return f"{task_device(task)}/device:CPU:0"


# Cached: costs and passes call this for each variable.
@lru_cache(maxsize=64)
def _replicas(topology: Topology) -> tuple[Replica, ...]:
    share, extra = divmod(topology.batch_size, topology.n_replicas)
    replicas: list[Replica] = []
    start = 0
    for task, count in enumerate(topology.replicas_per_task):
        for local in range(count):
            rank = len(replicas)
            stop = start + share + (rank < extra)
            device = f"{task_device(task)}/device:{topology.device.upper()}:{local}"
            replicas.append(Replica(rank=rank, task=task, local=local, device=device, start=start, stop=stop))
            start = stop
    return tuple(replicas)


@lru_cache(maxsize=64)
def _replicas_by_task(topology: Topology) -> tuple[tuple[Replica, ...], ...]:
    ranks = iter(topology.replicas())
    return tuple(tuple(islice(ranks, count)) for count in topology.replicas_per_task)


@lru_cache(maxsize=64)
def _kinds(topology: Topology) -> TaskKinds:
    numbers: dict[tuple[int, ...], int] = {}
    of_task = [
        numbers.setdefault(tuple(replica.examples for replica in local), len(numbers))
        for local in _replicas_by_task(topology)
    ]
    return TaskKinds(examples=tuple(numbers), of_task=tuple(of_task))


@lru_cache(maxsize=64)
def _shards(topology: Topology) -> tuple[Shard, ...]:
    k = topology.micro_batches
    shards: list[Shard] = []
    for replica in topology.replicas():
        share, extra = divmod(replica.examples, k)
        start = replica.start
        for turn in range(k):
            stop = start + share + (turn < extra)
            shards.append(Shard(rank=len(shards), replica=replica, turn=turn, start=start, stop=stop))
            start = stop
    return tuple(shards)


def task_device(task: int) -> str:
    """TensorFlow's name of a task."""
    return f"/job:worker/replica:0/task:{task}"
