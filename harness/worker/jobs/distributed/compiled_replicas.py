"""Job of a process whose TPU replicas compile a rewritten step, because no session can run it.

TensorFlow's TPUStrategy provides devices, variables and sums between replicas; the computation is the plan's
own graph. The other jobs are the same as with sessions.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from harness.worker.jobs.batches import read_batches
from harness.worker.jobs.distributed.workload import Distributed
from harness.worker.jobs.refusals import refusals_as, unsupported
from harness.worker.jobs.training import Batch, Opened, StepSession, Training
from harness.worker.process.job import JobState
from harness.worker.variable_parts import Held
from strategies.errors import UnsupportedError
from strategies.ir.train_graph import TrainGraph
from strategies.plan.schema import Plan
from strategies.planner import topology_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from harness.worker.jobs.distributed.variable_copies import DistributedCopies
    from harness.worker.session.capture_store import InitialValues
    from harness.worker.session.variable_memory import Holdings
    from strategies.program import ReplicaProgram
    from strategies.tf_bridge.tpu import CompiledReplicas

_WHO_COMPILES = (
    "replicas compile this strategy's graph; TensorFlow's TPUStrategy gives them devices, variables and sums"
)


def open_replicas(state: JobState, capture: str, plan: Plan, task: int, *, batches: str) -> Opened:
    """Transform a captured step for the replicas of this process's TPU devices, and compile it.

    Args:
        capture: folder of the capture. plan: plan with a single task.
        batches: folder of global batches; the first is used for a first run.
    Raises:
        CaseError: `unsupported`, if such replicas cannot run the step.
    """
    from harness.worker.session.capture_store import InitialValues, load_step
    from harness.worker.session.checkpoint import left_out
    from strategies.compile import compile_replica

    folder, topology = Path(capture), topology_of(plan)
    step, initial = load_step(folder), InitialValues(folder)
    started_s = time.monotonic()
    with refusals_as(lambda line: unsupported(f"{plan.strategy}: {line}")):
        program = compile_replica(step, plan, check=False)
        transformed_s = time.monotonic()
        _require_known_shapes(step)
        (batch,) = read_batches(Path(batches), n=1)
        session = _session(state, step, initial, plan, program, batch)
    imported_s = time.monotonic()
    weights = (program.weight,) * topology.n_replicas
    state.put(Training(session=session, task=task, weights=weights))
    return Opened(
        transform_s=transformed_s - started_s,
        import_s=imported_s - transformed_s,
        nodes_before=len(step.graph.nodes),
        nodes_after=program.n_nodes,
        start=0,
        stop=plan.batch_size,
        notes=(
            *state.get(Distributed).distribution.notes,
            _WHO_COMPILES,
            *left_out((), initial, {v.name for v in step.variables}),
        ),
    )


class ReplicaSession(StepSession):
    """Steps of all replicas of a process.

    Args:
        copies: copies of the variables.
        steps_per_run: largest number of steps in one run.
    """

    def __init__(
        self, replicas: "CompiledReplicas", copies: "DistributedCopies", *, steps_per_run: int
    ) -> None:
        self._replicas, self._copies = replicas, copies
        self._steps_per_run = steps_per_run

    def load(self) -> None:
        self._copies.load()

    def prepare(self, batch: Batch) -> Batch:
        return self._replicas.placed(batch)

    def step(self, feeds: Batch) -> "Sequence[npt.NDArray[np.generic]]":
        return tuple(self.steps([feeds])[0])

    @property
    def steps_per_run(self) -> int:
        return self._steps_per_run

    def steps(self, batches: Sequence[Batch]) -> "npt.NDArray[np.generic]":
        return self._replicas(batches)

    def read(self) -> Held:
        return self._copies.read()

    def held_bytes(self) -> "Holdings":
        return self._copies.held_bytes()


def _session(
    state: JobState,
    step: TrainGraph,
    initial: "InitialValues",
    plan: Plan,
    program: "ReplicaProgram",
    batch: Batch,
) -> ReplicaSession:
    from harness.worker.jobs.distributed.variable_copies import DistributedCopies
    from strategies.tf_bridge.tpu import CompiledReplicas, replicated_variables

    distribution = state.get(Distributed).distribution.strategy
    topology, execution = topology_of(plan), plan.execution
    values = {v.name: initial.value(v.name) for v in step.variables}
    variables = replicated_variables(distribution, step.variables, values)
    replicas = CompiledReplicas(
        program, distribution, variables, topology.replicas(), loops_on_device=execution.loops_on_device
    )
    replicas.compile([replicas.placed(batch)] * execution.steps_per_loop)
    ranks = [replica.rank for replica in topology.replicas()]
    copies = DistributedCopies(distribution, step.variables, variables, initial, ranks=ranks, task=0)
    return ReplicaSession(replicas, copies, steps_per_run=execution.steps_per_loop)


def _require_known_shapes(step: TrainGraph) -> None:
    for b in step.batch:
        _, *dims = b.shape.dims or (-1, -1)
        if min(dims, default=0) < 0:
            raise UnsupportedError(
                f"a step for TPU devices: examples must have a known shape, got {b.shape} of {b.path!r}; pad "
                "them in dataset()"
            )
