"""Traffic of a plan: bytes that each task sends and receives in all exchanges, and bytes of collectives."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from strategies.plan.exchanges.flow import Flow, Op
from strategies.plan.links import task_bytes, whole_matrix
from strategies.plan.schema import DENSE_SYNCHRONIZERS, PlanNode, TaskTraffic
from strategies.topology import TaskKinds


def traffic_of(flows: Sequence[Flow], kinds: TaskKinds) -> tuple[TaskTraffic, ...]:
    """Bytes per step by task; tasks that send and receive as much are one entry.

    Args:
        kinds: kinds of tasks of the plan's topology.
    """
    everything = task_bytes((flow.links for flow in flows), kinds)
    pulled = task_bytes((flow.links for flow in flows if flow.op == "pull"), kinds)
    figures = (everything.sent, everything.received, pulled.sent, pulled.received)
    alike: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for task, n_bytes in enumerate(zip(*(column.tolist() for column in figures), strict=True)):
        alike[n_bytes].append(task)
    return tuple(
        TaskTraffic(
            tasks=tuple(tasks),
            sent_bytes=sent,
            received_bytes=received,
            pull_sent_bytes=pull_sent,
            pull_received_bytes=pull_received,
        )
        for (sent, received, pull_sent, pull_received), tasks in alike.items()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadMatrix:
    """[task i][task j] → bytes per step that i sends to j, rounded to whole bytes.

    Attributes:
        pulled: part of `sent` that consists of values read from servers.
    """

    sent: tuple[tuple[int, ...], ...]
    pulled: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, flows: Sequence[Flow], n_tasks: int) -> "PayloadMatrix":
        """Make the matrix, whose size is the square of the number of tasks."""
        pulls = (flow.links for flow in flows if flow.op == "pull")
        return cls(
            sent=whole_matrix((flow.links for flow in flows), n_tasks), pulled=whole_matrix(pulls, n_tasks)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveBytes:
    """Bytes per step of whole payloads in collectives of all replicas.

    Attributes:
        all_gather_bytes: bytes of all replicas' shares together.
        left_out: variables that are not counted: those on servers, and those with sparse gradients, whose
            size is known only in a run.
    """

    all_reduce_bytes: float
    reduce_scatter_bytes: float
    all_gather_bytes: float
    left_out: tuple[str, ...] = ()


def collective_bytes_of(flows: Iterable[Flow], nodes: Iterable[PlanNode]) -> CollectiveBytes:
    """Bytes that a plan's replicas sum, scatter and gather."""
    n_bytes: defaultdict[Op, float] = defaultdict(float)
    for flow in flows:
        n_bytes[flow.op] += flow.n_bytes
    left_out = [
        node.variable
        for node in nodes
        if node.synchronizer in ("ps", "robust-servers")
        or (node.sparse and node.synchronizer not in DENSE_SYNCHRONIZERS)
    ]
    return CollectiveBytes(
        all_reduce_bytes=n_bytes["sum"],
        reduce_scatter_bytes=n_bytes["scatter"],
        all_gather_bytes=n_bytes["gather"],
        left_out=tuple(left_out),
    )
