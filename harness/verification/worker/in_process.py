"""All workers of a topology in one process, each with a server, a session and a thread."""

import itertools
import secrets
import socket
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Self, TypeVar

import numpy as np
import tensorflow as tf

from harness.worker.session.capture_store import InitialValues
from harness.worker.session.session import WorkerSession
from harness.worker.session.tensorflow_settings import Use, start_server
from harness.worker.transport.tcp_ring import Ring, address_of, listen
from harness.worker.variable_parts import Array, Copy, values_of
from strategies.compile import compile_tasks
from strategies.ir.train_graph import TrainGraph
from strategies.plan.schema import Plan
from strategies.planner import topology_of
from strategies.program import Program
from strategies.tf_bridge.program import COLLECTIVE_OPS

HOST = "127.0.0.1"
# A worker that waits for a sum blocks a thread; with more workers than threads, all would wait forever.
_N_INTER_OP = 32
_GROUPS = 1 << 12  # per plan: a key for each pair of 64 replicas
_GROUP_INPUT = 2  # of every collective: input, group size, group key, instance key


@dataclass(frozen=True)
class ServerPool:
    """Servers that no cluster uses at the moment, without any variable, accumulator or queue.

    Servers of a failed cluster must not return, because steps may wait on them forever.
    """

    _idle: dict[tuple[int, ...], list[list[tf.distribute.Server]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def take(self, programs: Sequence[Program]) -> list[tf.distribute.Server]:
        try:
            return self._idle[_shape(programs)].pop()
        except IndexError:
            return _started(programs)

    def give_back(self, programs: Sequence[Program], servers: list[tf.distribute.Server]) -> None:
        """Take servers whose sessions are closed, and free their resources."""
        for server in servers:
            tf.compat.v1.Session.reset(server.target)
        self._idle[_shape(programs)].append(servers)


POOL = ServerPool()
"""Free servers of this process."""

_first_group_keys = itertools.count(_GROUPS, _GROUPS)


def in_own_group(programs: Sequence[Program]) -> list[Program]:
    """Programs with their own group keys, because servers remember the shapes of a group's collectives."""
    first = next(_first_group_keys)
    return [replace(p, graph_def=_with_groups(p.graph_def, first)) if p.group_leader else p for p in programs]


def _with_groups(graph_def: bytes, first: int) -> bytes:
    graph = tf.compat.v1.GraphDef.FromString(graph_def)
    for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
        # In a function's body, a reference also names the output.
        keys = {n.input[_GROUP_INPUT].partition(":")[0] for n in nodes if n.op in COLLECTIVE_OPS}
        for node in nodes:
            if node.name in keys:
                group_key = int(tf.make_ndarray(node.attr["value"].tensor))
                node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(first + group_key, tf.int32))
    return bytes(graph.SerializeToString())


def _shape(programs: Sequence[Program]) -> tuple[int, ...]:
    return tuple(program.n_devices for program in programs)


def _started(programs: Sequence[Program]) -> list[tf.distribute.Server]:
    addresses = _free_addresses(len(programs))
    return [start_server(p.task, addresses, p.n_devices, n_inter_op=_N_INTER_OP) for p in programs]


def _free_addresses(n: int) -> list[str]:
    """Addresses that were free just now; all are held until all are known, so that they differ."""
    with ExitStack() as stack:
        holders = [stack.enter_context(socket.socket()) for _ in range(n)]
        for holder in holders:
            holder.bind((HOST, 0))
        return [f"{HOST}:{holder.getsockname()[1]}" for holder in holders]


T = TypeVar("T")


def programs_of(step: TrainGraph, plan: Plan) -> tuple[Program, ...]:
    """Program of every task."""
    tasks = range(topology_of(plan).n_tasks)
    return tuple(compiled.program for compiled in compile_tasks(step, plan, tasks))


class InProcessCluster:
    """Workers that step together; as a context manager it closes their sessions and releases the servers.

    Attributes:
        sessions: session of each worker, by task.
    Args:
        fetching: further tensors to fetch in every step, by task.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        initial: InitialValues,
        *,
        fetching: Sequence[Sequence[str]] | None = None,
    ) -> None:
        self._fetching = fetching or [()] * len(programs)
        self._servers = POOL.take(programs)
        self._failed = False
        self._threads = ThreadPoolExecutor(len(programs), thread_name_prefix="worker")
        self._initial = initial
        self.sessions = self._opened(programs)
        self._of_size = {examples_of(programs): self.sessions}
        self._stepped = self.sessions

    def __enter__(self) -> Self:
        self.each(WorkerSession.load)
        self.each(WorkerSession.setup)
        return self

    def begin(self, initial: InitialValues) -> None:
        """Restart from other initial values; not for plans whose steps leave state outside of variables."""
        assert not any(s.program.setup or s.program.step.n_taken for s in self.sessions)
        for session in self.sessions:
            session.initial = initial
        self.each(WorkerSession.load)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._close()
        if kind is None and not self._failed:
            POOL.give_back([session.program for session in self.sessions], self._servers)

    def take_up(self, programs: Sequence[Program]) -> None:
        """Use these programs for batches of their size from now on; all programs share their variables.

        Args:
            programs: programs of the same step and plan; the number of examples may differ.
        """
        self._of_size[examples_of(programs)] = self._opened(programs)

    def step(self, batch: Sequence[Array]) -> float:
        def one(session: WorkerSession) -> float:
            program = session.program
            losses = session.step([part[program.start : program.stop] for part in batch])
            return sum(
                loss.weight * float(value) for loss, value in zip(program.step.losses, losses, strict=True)
            )

        self._stepped = self._of_size[len(batch[0])]
        return sum(self.each(one, self._stepped))

    def steps(self, batches: Sequence[Sequence[Array]]) -> tuple[float, ...]:
        return tuple(loss for run in self._runs(batches) for loss in self._looped(run))

    def _runs(self, batches: Sequence[Sequence[Array]]) -> Iterator[list[Sequence[Array]]]:
        for size, alike in itertools.groupby(batches, key=lambda batch: len(batch[0])):
            # At least two runs, so that state passed from one to the next is compared, too.
            limit = min(self._of_size[size][0].steps_per_run or 1, -(-len(batches) // 2))
            while run := list(itertools.islice(alike, limit)):
                yield run

    def _looped(self, batches: Sequence[Sequence[Array]]) -> list[float]:
        if len(batches) == 1:
            return [self.step(batches[0])]

        def several(session: WorkerSession) -> Array:
            program = session.program
            own = [[part[program.start : program.stop] for part in batch] for batch in batches]
            means: Array = session.steps(own) @ np.asarray([loss.weight for loss in program.step.losses])
            return means

        self._stepped = self._of_size[len(batches[0][0])]
        losses: list[float] = np.sum(self.each(several, self._stepped), axis=0).tolist()
        return losses

    def further(self) -> list[tuple[Program, Sequence[Array]]]:
        return [(session.program, session.further) for session in self._stepped]

    def read(self) -> Mapping[Copy, Array]:
        return values_of(self.each(WorkerSession.read))

    def each(
        self, job: Callable[[WorkerSession], T], sessions: Sequence[WorkerSession] | None = None
    ) -> list[T]:
        """Run a job on all workers at the same time.

        Args:
            sessions: session of each worker; None takes those that load and read.
        Returns:
            Results by task.
        Raises:
            Exception: a worker's exception, as soon as it is raised; the cluster is unusable afterwards.
        """
        futures = [self._threads.submit(job, session) for session in sessions or self.sessions]
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        failed = next((future for future in futures if future in done and future.exception()), None)
        if failed is not None:
            # The others would wait for the failed one forever, unless their sessions end.
            self._failed = True
            self._close()
            failed.result()
        return [future.result() for future in futures]

    def _opened(self, programs: Sequence[Program]) -> list[WorkerSession]:
        def opened(program: Program, target: str, ring: Ring | None) -> WorkerSession:
            return WorkerSession(
                program,
                target,
                self._initial,
                ring,
                fetching=self._fetching[program.task],
                use=Use.FEW_STEPS,
            )

        targets = [server.target for server in self._servers]
        return list(self._threads.map(opened, in_own_group(programs), targets, self._rings(programs)))

    def _rings(self, programs: Sequence[Program]) -> Sequence[Ring | None]:
        if not any(p.step.transfers for p in programs):
            return [None] * len(programs)
        listeners = [listen(HOST) for _ in programs]
        addresses = [address_of(listener) for listener in listeners]
        secret = secrets.token_bytes()
        return list(
            self._threads.map(
                lambda task: Ring(task, addresses, listeners[task], secret), range(len(programs))
            )
        )

    def _close(self) -> None:
        for session in itertools.chain.from_iterable(self._of_size.values()):
            session.close()


def examples_of(programs: Sequence[Program]) -> int:
    """Examples of the global batch that all workers' programs share."""
    return max(program.stop for program in programs)
