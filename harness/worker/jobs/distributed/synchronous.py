"""Jobs of a process under one of TensorFlow's own strategies; all others are those of a session.

The process serves the strategy's cluster instead of sessions, and builds the workload anew in the strategy's
scope instead of reading a captured graph. Initial values, batches and checks are the same.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from harness.experiment.cases import Case
from harness.records.conditions import Placement
from harness.worker.jobs.distributed.workload import Distributed, built
from harness.worker.jobs.refusals import refusals_as, unsupported
from harness.worker.jobs.training import Batch, Opened, StepSession, Training
from harness.worker.process.job import JobState
from harness.worker.variable_parts import Held
from strategies.ir.random_ops import require_seeds_of_variables
from strategies.ir.train_graph import TrainGraph
from strategies.plan.schema import Plan
from strategies.planner import topology_of

if TYPE_CHECKING:
    import tensorflow as tf

    from harness.worker.jobs.distributed.variable_copies import DistributedCopies
    from harness.worker.session.capture_store import InitialValues
    from harness.worker.session.variable_memory import Holdings
    from strategies.baselines.replicated_step import DistributedStep
    from strategies.topology import Replica

Array: TypeAlias = np.ndarray[Any, Any]
Copy: TypeAlias = tuple[str, int | None]
_MERGED = ("mean", "sum")
_UNMERGED_STATE = (
    "batch-norm statistics and other forward state are not synchronised during training; the check compares "
    "the replicas' merged state"
)


def open_baseline(
    state: JobState, capture: str, plan: Plan, task: int, *, case: Case, seed: int, batches: str | None = None
) -> Opened:
    """Build the workload's step in the scope of this process's strategy and trace it.

    Args:
        capture: folder of the capture, for initial values and names.
        case, seed: case and seed from which the workload is built.
        batches: folder of the staged global batches; None if none are staged.
    Raises:
        CaseError: `unsupported`, if TensorFlow's strategy cannot run this workload.
    """
    from harness.worker.session.capture_store import InitialValues, load_step
    from harness.worker.session.checkpoint import left_out
    from harness.worker.session.device_batches import too_large

    folder, topology = Path(capture), topology_of(plan)
    captured, initial = load_step(folder), InitialValues(folder)
    local = topology.local_replicas(task)
    note = None
    if plan.device == "gpu" and batches is not None:
        note = too_large(Path(batches), sum(r.examples for r in local) / plan.batch_size)
    with refusals_as(lambda line: unsupported(f"{plan.strategy}: {line}")):
        if topology.n_replicas > 1:
            require_seeds_of_variables(captured.graph)
        session = _session(
            state, case, seed, captured, initial, local, plan.batch_size, on_host=note is not None
        )
    is_sum = captured.losses[0].reduction == "sum"
    weights = tuple(1.0 if is_sum else replica.examples / plan.batch_size for replica in local)
    state.put(Training(session=session, task=task, weights=weights))
    merges = topology.n_replicas > 1 and any(v.rule in _MERGED for v in captured.variables)
    return Opened(
        start=local[0].start,
        stop=local[-1].stop,
        input_placement=session.placement if plan.device == "gpu" else None,
        notes=(
            *state.get(Distributed).distribution.notes,
            *(() if note is None else (note,)),
            *((_UNMERGED_STATE,) if merges else ()),
            *left_out((), initial, {v.name for v in captured.variables}),
        ),
    )


class BaselineSession(StepSession):
    """One worker's part of a step under TensorFlow's own strategy.

    Args:
        copies: this worker's copies of variables.
    """

    def __init__(
        self, step: "DistributedStep", distribution: "tf.distribute.Strategy", copies: "DistributedCopies"
    ) -> None:
        self._copies = copies
        self._step = step
        self._distribution = distribution

    def load(self) -> None:
        self._copies.load()

    def prepare(self, batch: Batch) -> Batch:
        return self._step.placed(batch)  # type: ignore[no-any-return]

    @property
    def placement(self) -> Placement:
        from harness.worker.session.device_batches import placement

        return placement(self._step.parts_on_gpus)

    def step(self, feeds: Batch) -> Sequence[Array]:
        return self._step(feeds)

    def read(self) -> Held:
        """Every copy of this worker; forward state merged by its rule, on all workers together."""
        from strategies.baselines.variables import merged

        own = self._copies
        values: dict[Copy, Array] = {}
        states: dict[str, tf.Variable] = {}
        for name, v in own.captured.items():
            if name in own.variables and v.rule in _MERGED and not own.is_shared(name):
                states[name] = own.variables[name]
                continue
            own_values = own.values(name)
            first_alone = name in own.variables and v.rule == "first-replica"
            values |= {copy: value for copy, value in own_values.items() if not first_alone or not copy[1]}
        total = merged(
            self._distribution,
            states,
            {name: str(own.captured[name].rule) for name in states},
            {name: own.initial(name, 0) for name in states},
            self._step.weight,
        )
        values |= {(name, None): value for name, value in total.items()}
        return {copy: [(None, value)] for copy, value in values.items()}

    def held_bytes(self) -> "Holdings":
        return self._copies.held_bytes()


def _session(
    state: JobState,
    case: Case,
    seed: int,
    captured: TrainGraph,
    initial: "InitialValues",
    replicas: Sequence["Replica"],
    batch_size: int,
    *,
    on_host: bool,
) -> BaselineSession:
    from harness.worker.jobs.distributed.variable_copies import DistributedCopies
    from strategies.baselines.replicated_step import DistributedStep

    state_of_job = state.get(Distributed).distribution
    distribution = state_of_job.strategy
    workload = built(distribution, case, seed, captured)
    distributed = DistributedStep(
        workload.body,
        workload.boundary,
        distribution,
        workload.structure,
        replicas,
        batch_size,
        weight_dtype=state_of_job.weight_dtype,
        on_host=on_host,
    )
    distributed.trace()
    variables = workload.variables(captured.variables)
    ranks, task = [replica.rank for replica in replicas], replicas[0].task
    copies = DistributedCopies(distribution, captured.variables, variables, initial, ranks=ranks, task=task)
    session = BaselineSession(distributed, distribution, copies)
    # Before the first load every replica has what its initializer drew.
    session.load()
    return session
