"""Jobs of processes under TensorFlow's ParameterServerStrategy; the others are the same as with sessions.

Each process serves a worker and, in the first ones, a parameter server. Task 0's process is also the
coordinator: it builds the workload, and schedules and counts all steps.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from harness.experiment.cases import Case
from harness.worker.jobs.distributed.synchronous import Array
from harness.worker.jobs.distributed.workload import built
from harness.worker.jobs.refusals import refusals_as, unsupported
from harness.worker.jobs.rendezvous import on_reserved_port
from harness.worker.jobs.training import Batch, Opened, StepSession, Training
from harness.worker.process.job import JobState
from harness.worker.session.timed_loop import StepTimes, no_garbage_collection
from harness.worker.variable_parts import Held
from strategies.builders.tensorflow_strategies import servers_of
from strategies.ir.random_ops import require_seeds_of_variables
from strategies.ir.train_graph import TrainGraph
from strategies.plan.schema import Plan
from strategies.planner import topology_of

if TYPE_CHECKING:
    import tensorflow as tf

    from harness.worker.jobs.distributed.variable_copies import DistributedCopies
    from harness.worker.session.capture_store import InitialValues
    from harness.worker.session.variable_memory import Holdings
    from strategies.baselines.coordinated import CoordinatedStep


@dataclass(slots=True, frozen=True, kw_only=True)
class _Cluster:
    spec: "tf.train.ClusterSpec"
    addresses: Sequence[str]
    servers: tuple[object, ...]  # kept alive by this reference


def start_cluster(
    state: JobState, task: int, addresses: Sequence[str], n_devices: int, *, plan: Plan
) -> None:
    """Start the servers of one task on the ports reserved for them.

    Args:
        addresses: addresses of all workers, then of the parameter servers, then of the coordinators next to
            them.
    Raises:
        CaseError: `port-in-use`, see `rendezvous.start_server`.
    """
    import tensorflow as tf

    from strategies.baselines.coordinated import COORDINATOR, SERVER, WORKER, serve

    del n_devices  # TensorFlow makes one replica of all
    topology = topology_of(plan)
    n = topology.n_tasks
    workers, beside, coordinators = addresses[:n], addresses[n : 2 * n], addresses[2 * n :]
    servers = beside[: servers_of(topology, plan.strategy_params)]
    spec = tf.train.ClusterSpec({WORKER: workers, SERVER: servers, COORDINATOR: coordinators[:1]})
    with on_reserved_port(state, task, workers):
        started = [serve(spec, WORKER, task)]
    if task < len(servers):
        with on_reserved_port(state, task, servers, port=1):
            started.append(serve(spec, SERVER, task))
    state.put(_Cluster(spec=spec, addresses=coordinators, servers=tuple(started)))


def open_coordinated(
    state: JobState, capture: str, plan: Plan, task: int, *, case: Case, seed: int
) -> Opened:
    """Build and trace the workload's step in the coordinator; other processes wait for its closures.

    Args:
        capture: folder of the capture, for initial values and names.
        case, seed: case and seed from which the workload is built.
    Raises:
        CaseError: `unsupported`, if TensorFlow's strategy cannot run this workload.
    """
    from harness.worker.session.capture_store import InitialValues, load_step
    from harness.worker.session.checkpoint import left_out

    if task > 0:
        state.put(Training(session=_Waiting(), task=task, weights=(), loop=_no_steps))
        return Opened(start=0, stop=0)
    captured, initial = load_step(Path(capture)), InitialValues(Path(capture))
    with refusals_as(lambda line: unsupported(f"{plan.strategy}: {line}")):
        session = _session(state, case, seed, captured, initial, plan)
    state.put(Training(session=session, task=task, weights=(1.0,), loop=session.loop))
    dropped = left_out((), initial, {v.name for v in captured.variables})
    return Opened(start=0, stop=plan.batch_size, notes=(*_settings(plan), *dropped))


class CoordinatorSession(StepSession):
    """Steps of all workers in their coordinator, which has the only copy of each variable."""

    def __init__(
        self, step: "CoordinatedStep", copies: "DistributedCopies", n_workers: int, *, is_sum: bool
    ) -> None:
        self._step = step
        self._copies = copies
        self._n_workers = n_workers
        self._is_sum = is_sum
        self._n_closures: Counter[int] = Counter()

    def load(self) -> None:
        self._copies.load()

    def step(self, feeds: Batch) -> Sequence[Array]:
        return [self.loop([feeds], 1, 0).losses[0]]

    def loop(self, feeds: Sequence[Batch], n_steps: int, first: int) -> StepTimes:
        """Schedule a closure for each worker and step; a step's loss combines those of its closures."""
        if first == 0:
            self._step.feed(feeds)
        with no_garbage_collection():
            began_s = time.time()
            losses, ended_s, workers = self._step.run(n_steps * self._n_workers)
        self._n_closures.update(workers.tolist())
        start_s, end_s = rounds(ended_s, began_s=began_s, n_workers=self._n_workers)
        combined = np.sum if self._is_sum else np.mean
        of_steps = combined(losses.reshape(n_steps, self._n_workers), axis=1, keepdims=True)
        return StepTimes(start_s=start_s, end_s=end_s, losses=of_steps)

    def read(self) -> Held:
        return self._copies.read()

    def held_bytes(self) -> "Holdings":
        """Bytes of each server; server k is in the process of worker k."""
        return self._copies.held_bytes()

    def update_notes(self) -> tuple[str, ...]:
        counts = ", ".join(
            f"worker {worker} made {self._n_closures[worker]}" for worker in range(self._n_workers)
        )
        return (f"closures of one worker's share: {counts}; a step is over when {self._n_workers} more are",)


def rounds(ended_s: Array, *, began_s: float, n_workers: int) -> tuple[Array, Array]:
    """Start and end of each step; a step ends after one more closure per worker, whichever worker ran it.

    Args:
        ended_s: ends of all closures, in order, on the clock of `time.time`. began_s: start on the same
            clock.
    Returns:
        Seconds on the monotonic clock of this process.
    """
    stamps = np.concatenate([[began_s], ended_s[n_workers - 1 :: n_workers]])
    stamps = np.maximum.accumulate(stamps) - (time.time() - time.monotonic())
    return stamps[:-1], stamps[1:]


class _Waiting(StepSession):
    """Worker whose steps the coordinator makes, counts and reads."""

    def load(self) -> None:
        """The coordinator loads."""

    def step(self, feeds: Batch) -> Sequence[Array]:  # noqa: ARG002 - a StepSession
        return ()

    def read(self) -> Held:
        return {}

    def held_bytes(self) -> "Holdings":
        return {}


def _no_steps(feeds: Sequence[Batch], n_steps: int, first: int) -> StepTimes:
    del feeds, first
    nothing = np.zeros(n_steps)
    return StepTimes(start_s=nothing, end_s=nothing, losses=np.zeros((n_steps, 0)))


def _settings(plan: Plan) -> tuple[str, ...]:
    from strategies.baselines.coordinated import n_threads

    topology = topology_of(plan)
    n_servers = servers_of(topology, plan.strategy_params)
    note = (
        f"parameter servers on {n_servers} of {topology.n_tasks} workers, in their processes, and the "
        f"coordinator in that of worker 0; {n_threads(topology.n_tasks)} threads between operations in each, "
        "or it may hang; no variable_partitioner: Keras 3 trains no variable in parts"
    )
    return (note,)


def _session(
    state: JobState, case: Case, seed: int, captured: TrainGraph, initial: "InitialValues", plan: Plan
) -> CoordinatorSession:
    from harness.worker.jobs.distributed.variable_copies import DistributedCopies
    from strategies.baselines.coordinated import CoordinatedStep, connected

    n_workers = topology_of(plan).n_tasks
    if n_workers > 1:
        require_seeds_of_variables(captured.graph)
    cluster = state.get(_Cluster)
    with on_reserved_port(state, 0, cluster.addresses, port=2):
        distribution = connected(cluster.spec)
    workload = built(distribution, case, seed, captured)
    share = plan.batch_size // n_workers
    step = CoordinatedStep(
        workload.body, workload.boundary, distribution, workload.structure, share, n_workers
    )
    step.trace()
    variables = workload.variables(captured.variables)
    copies = DistributedCopies(distribution, captured.variables, variables, initial, ranks=[None])
    is_sum = captured.losses[0].reduction == "sum"
    return CoordinatorSession(step, copies, n_workers, is_sum=is_sum)
