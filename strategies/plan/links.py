"""Links: bytes that tasks send each other in an exchange, stated once for tasks that are alike.

A ring, servers with all other tasks, or every pair of replicas: no form lists pairs of tasks. The matrix of
all pairs is made only on request.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from strategies.topology import TaskKinds

Vector: TypeAlias = npt.NDArray[np.float64]
Counts: TypeAlias = npt.NDArray[np.int64]


class Links(Protocol):
    """Bytes per step that tasks send each other; nothing within a task."""

    def sent(self) -> Vector:
        """Bytes that each task sends to all others: [n_tasks]."""
        ...

    def received(self) -> Vector:
        """Bytes that each task receives from all others: [n_tasks]."""
        ...

    def matrix(self) -> Vector:
        """Bytes from task i to task j: [n_tasks, n_tasks]."""
        ...


def total(links: Links) -> float:
    """Bytes that all tasks send together."""
    return float(links.sent().sum())


def busiest(links: Links) -> int:
    """First of the tasks that send or receive the most bytes."""
    return int(np.maximum(links.sent(), links.received()).argmax())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ring:
    """Each task sends to the next one, the last to the first.

    Attributes:
        forwarded: bytes that a task sends: one number if all send as much, else one for each task.
    """

    n_tasks: int
    forwarded: float | Vector

    def sent(self) -> Vector:
        return np.zeros(self.n_tasks) + (self.forwarded if self.n_tasks > 1 else 0.0)

    def received(self) -> Vector:
        return np.roll(self.sent(), 1)

    def matrix(self) -> Vector:
        return np.roll(np.diag(self.sent()), 1, axis=1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServerLinks:
    """Servers send to all other tasks, or all other tasks send to servers.

    Attributes:
        kinds: kinds of tasks.
        servers: tasks that serve, ascending.
        n_bytes: bytes between each server and another task of each kind: [n_servers, n_kinds].
        from_servers: True if the servers send.
    """

    kinds: TaskKinds
    servers: Counts
    n_bytes: Vector
    from_servers: bool

    def sent(self) -> Vector:
        return self._of_servers() if self.from_servers else self._of_others()

    def received(self) -> Vector:
        return self._of_others() if self.from_servers else self._of_servers()

    def matrix(self) -> Vector:
        of_task = np.array(self.kinds.of_task)
        by_server = np.zeros((len(of_task), len(of_task)))
        by_server[self.servers] = self.n_bytes[:, of_task]
        np.fill_diagonal(by_server, 0.0)
        return by_server if self.from_servers else by_server.T

    def _of_servers(self) -> Vector:
        of_task = np.array(self.kinds.of_task)
        n_bytes = np.zeros(len(of_task))
        n_bytes[self.servers] = self.n_bytes @ np.bincount(of_task) - self._own()
        return n_bytes

    def _of_others(self) -> Vector:
        n_bytes: Vector = self.n_bytes.sum(axis=0)[np.array(self.kinds.of_task)]
        n_bytes[self.servers] -= self._own()
        return n_bytes

    def _own(self) -> Vector:
        """Bytes between each server and a task of its own kind."""
        kinds = np.array(self.kinds.of_task)[self.servers]
        n_bytes: Vector = self.n_bytes[np.arange(len(kinds)), kinds]
        return n_bytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairLinks:
    """Every two replicas of different tasks send each other as many bytes as the longer of their shares.

    Attributes:
        shares: bytes of each replica's share, by rank.
    """

    replicas_per_task: tuple[int, ...]
    shares: Vector

    def sent(self) -> Vector:
        ascending = np.sort(self.shares)
        n_shorter = np.searchsorted(ascending, self.shares, side="right")
        longer = np.append(np.cumsum(ascending[::-1])[::-1], 0.0)[n_shorter]
        to_all = np.add.reduceat(self.shares * n_shorter + longer, self._first_ranks())
        n_bytes: Vector = to_all - self.between(0)
        return n_bytes

    def received(self) -> Vector:
        return self.sent()

    def matrix(self) -> Vector:
        first_ranks = self._first_ranks()
        pairs = np.maximum.outer(self.shares, self.shares)
        by_task: Vector = np.add.reduceat(np.add.reduceat(pairs, first_ranks), first_ranks, axis=1)
        np.fill_diagonal(by_task, 0.0)
        return by_task

    def between(self, distance: int) -> Vector:
        """Bytes between each task and the one so many places later; at 0, between its replicas: [n_tasks]."""
        shares = np.full((len(self.replicas_per_task), max(self.replicas_per_task)), -1.0)
        shares[np.arange(shares.shape[1]) < np.array(self.replicas_per_task)[:, None]] = self.shares
        others = np.roll(shares, -distance, axis=0)
        n_bytes = np.zeros(len(shares))
        for one in shares.T:
            for other in others.T:
                n_bytes += np.where((one < 0) | (other < 0), 0.0, np.maximum(one, other))
        return n_bytes

    def _first_ranks(self) -> Counts:
        return np.cumsum((0, *self.replicas_per_task[:-1]))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskBytes:
    """Whole bytes per step that each task sends and receives: [n_tasks] each."""

    sent: Counts
    received: Counts


def task_bytes(links: Iterable[Links], kinds: TaskKinds) -> TaskBytes:
    """Bytes that each task sends and receives in all exchanges, where each pair of tasks sends whole bytes.

    Sums of the rows and columns of `whole_matrix`, without the matrix: tasks of one kind that serve the same
    bytes send the same to all tasks but the next one of a ring.
    """
    of_task = np.array(kinds.of_task)
    n_tasks = len(of_task)
    if n_tasks == 1:
        return TaskBytes(sent=np.zeros(1, np.int64), received=np.zeros(1, np.int64))
    ring, pairs, next_pairs = np.zeros((3, n_tasks))
    to_servers, from_servers = np.zeros((2, n_tasks, len(kinds.examples)))
    for link in links:
        if isinstance(link, Ring):
            ring += link.sent()
        elif isinstance(link, ServerLinks):
            (from_servers if link.from_servers else to_servers)[link.servers] += link.n_bytes
        elif isinstance(link, PairLinks):
            pairs += link.sent()
            next_pairs += link.between(1)
    served = np.column_stack((of_task, to_servers, from_servers))
    _, first, alike, n_alike = np.unique(
        served, axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    alike = alike.reshape(n_tasks)  # NumPy 2.0 returns a column
    kinds_of_alike = of_task[first]
    exact = from_servers[first][:, kinds_of_alike] + to_servers[first][:, kinds_of_alike].T
    whole = np.rint(exact)
    following = np.roll(alike, -1)
    # All that goes to the next task is rounded together.
    to_next = np.rint(exact[alike, following] + ring + next_pairs)
    to_next -= whole[alike, following] + next_pairs
    sent = (whole @ n_alike - np.diag(whole))[alike] + to_next + pairs
    received = (n_alike @ whole - np.diag(whole))[alike] + np.roll(to_next, 1) + pairs
    return TaskBytes(sent=sent.astype(np.int64), received=received.astype(np.int64))


def whole_matrix(links: Iterable[Links], n_tasks: int) -> tuple[tuple[int, ...], ...]:
    """Bytes per step from task i to task j in all exchanges, rounded to whole bytes."""
    matrix = np.zeros((n_tasks, n_tasks))
    for link in links:
        matrix += link.matrix()
    return tuple(tuple(map(int, row)) for row in np.rint(matrix))
