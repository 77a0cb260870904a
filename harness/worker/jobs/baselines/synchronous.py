"""Jobs of a training process under one of TensorFlow's own strategies; all others are those of a session.

Such a process serves the strategy's cluster instead of a server for sessions, and builds the workload anew in
the strategy's scope instead of reading a captured graph. Initial values, batches and checks are the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from harness.errors import UNSUPPORTED, CaseError
from harness.experiment.cases import Case
from harness.worker.jobs.baselines.workload import built, refuse_seeded_operations
from harness.worker.jobs.rendezvous import on_reserved_port
from harness.worker.jobs.training import Batch, Opened, Training
from harness.worker.process.job import JobState
from harness.worker.session.variable_parts import Held
from strategies.errors import StrategyError, UnsupportedError
from strategies.ir.train_graph import TrainGraph
from strategies.ir.variable import SeedMix, Variable
from strategies.plan.schema import Plan
from strategies.planning.plan import topology_of

if TYPE_CHECKING:
    import tensorflow as tf

    from harness.worker.session.capture_store import InitialValues
    from harness.worker.session.variable_memory import Holdings
    from strategies.baselines.distribution import Distribution
    from strategies.baselines.step import DistributedStep
    from strategies.topology import Replica

Array: TypeAlias = np.ndarray[Any, Any]
Copy: TypeAlias = tuple[str, int | None]
_MERGED = ("mean", "sum")
_UNMERGED_STATE = (
    "TensorFlow leaves forward state to each replica and merges nothing while it trains; the check compares "
    "what the rule of each makes of all copies"
)


@dataclass(slots=True, frozen=True, kw_only=True)
class _Distributed:
    distribution: "Distribution"


def start_distribution(
    state: JobState, task: int, addresses: Sequence[str], n_devices: int, *, plan: str
) -> None:
    """Make a plan's strategy, and with it the server of one task, on the port reserved for it.

    Raises:
        CaseError: `port-in-use`, as `rendezvous.start_server`; `no-device` where this host has not what the
            plan takes.
    """
    from strategies.baselines.distribution import distribution_of

    try:
        with on_reserved_port(state, task, addresses):
            distribution = distribution_of(Plan.model_validate_json(plan), task, addresses, n_devices)
    except StrategyError as error:
        raise CaseError("no-device", str(error), stage="provision") from error
    use_distribution(state, distribution)


def use_distribution(state: JobState, distribution: "Distribution") -> None:
    """Let this process's steps run under a strategy of TensorFlow's, whose devices go back when it ends."""
    state.stack.callback(distribution.close)
    state.put(_Distributed(distribution=distribution))


def stop_distribution(state: JobState) -> None:
    """Give back the devices that the strategy holds."""
    state.get(_Distributed).distribution.close()


def open_baseline(state: JobState, capture: str, plan: str, task: int, *, case: Case, seed: int) -> Opened:
    """Build the workload's step in the scope of this process's strategy and trace it.

    Args:
        capture: folder of the capture, whose initial values and names are taken.
        plan: JSON of the plan.
        case, seed: to build the workload from.
    Raises:
        CaseError: `unsupported`, when TensorFlow's strategy cannot run this workload.
    """
    from harness.worker.session.capture_store import InitialValues, load_step
    from harness.worker.session.restored_state import left_out

    folder, parsed = Path(capture), Plan.model_validate_json(plan)
    captured, topology, initial = load_step(folder), topology_of(parsed), InitialValues(folder)
    local = topology.local_replicas(task)
    try:
        refuse_seeded_operations(captured, topology.n_replicas)
        session = _session(state, case, seed, captured, initial, local, parsed.batch_size)
    except UnsupportedError as error:
        raise CaseError(UNSUPPORTED, f"{parsed.strategy}: {error}", stage="transform") from error
    is_sum = captured.losses[0].reduction == "sum"
    weights = tuple(1.0 if is_sum else replica.examples / parsed.batch_size for replica in local)
    state.put(Training(session=session, task=task, weights=weights))
    merges = topology.n_replicas > 1 and any(v.rule in _MERGED for v in captured.variables)
    return Opened(
        start=local[0].start,
        stop=local[-1].stop,
        notes=(
            *state.get(_Distributed).distribution.notes,
            *((_UNMERGED_STATE,) if merges else ()),
            *left_out((), initial, {v.name for v in captured.variables}),
        ),
    )


class BaselineSession:
    """One worker's part of a step under TensorFlow's own strategy; see `training.StepSession`.

    Args:
        variables: captured variable's name → the distributed one.
        initial: what `load` gives to them.
        replicas: this worker's.
    """

    def __init__(
        self,
        step: "DistributedStep",
        distribution: "tf.distribute.Strategy",
        captured: Sequence[Variable],
        variables: Mapping[str, "tf.Variable"],
        initial: "InitialValues",
        replicas: Sequence["Replica"],
    ) -> None:
        self._step = step
        self._distribution = distribution
        self._captured = {v.name: v for v in captured}
        self._variables = dict(variables)
        self._initial = initial
        self._ranks = [replica.rank for replica in replicas]
        self._task = replicas[0].task

    def load(self) -> None:
        """Give every copy of every variable its initial value."""
        for name in self._variables:
            for rank, copy in self._copies(name):
                copy.assign(self._value(self._captured[name], rank))

    def setup(self) -> None:
        """Lookup tables are filled when their model is built: nothing is left to do."""

    def prepare(self, batch: Batch) -> Batch:
        """Lay a batch out for the replicas, as a distributed dataset does ahead of a step."""
        return self._step.placed(batch)  # type: ignore[no-any-return]

    def step(self, feeds: Batch) -> Sequence[Array]:
        """Run one step on a prepared batch and return the loss of each local replica."""
        return self._step(feeds)

    def read(self) -> Held:
        """Every copy that this worker holds; forward state as its rule merges it, on all workers together."""
        from strategies.baselines.variables import merged

        values: dict[Copy, Array] = {}
        states: dict[str, tf.Variable] = {}
        for name, v in self._captured.items():
            if name not in self._variables:
                values |= {(name, rank): self._value(v, rank) for rank in self._ranks}
            elif v.rule in _MERGED and len(self._copies(name)) == len(self._ranks):
                states[name] = self._variables[name]
            else:
                values |= {
                    (name, rank): copy.numpy()
                    for rank, copy in self._copies(name)
                    if v.rule != "first-replica" or not rank
                }
        total = merged(
            self._distribution,
            states,
            {name: str(self._captured[name].rule) for name in states},
            {name: self._value(self._captured[name], 0) for name in states},
            self._step.weight,
        )
        values |= {(name, None): value for name, value in total.items()}
        return {copy: [(None, value)] for copy, value in values.items()}

    def held_bytes(self) -> "Holdings":
        """Every copy that this worker has."""
        from harness.worker.session.variable_memory import held_eagerly

        copies = ((f"{name}/{rank}", copy) for name in self._variables for rank, copy in self._copies(name))
        return held_eagerly(copies, self._task)

    def settle(self, n_workers: int) -> None:
        """Steps make their updates themselves."""

    def update_notes(self) -> tuple[str, ...]:
        """All updates take all gradients."""
        return ()

    def close(self) -> None:
        """Nothing to give up: the strategy ends with its process, or by `stop_distribution`."""

    def _copies(self, name: str) -> list[tuple[int | None, "tf.Variable"]]:
        """Each replica's copy with its rank, or the one that all share."""
        from strategies.baselines.variables import copies

        found = copies(self._distribution, self._variables[name])
        shared = len(found) < len(self._ranks)
        return list(zip([None] if shared else self._ranks, found, strict=True))

    def _value(self, v: Variable, rank: int | None) -> Array:
        mix = None if v.seed_word is None or not rank else SeedMix(rank=rank, word=v.seed_word)
        return self._initial.value(v.name, mix, rank=rank)


def _session(
    state: JobState,
    case: Case,
    seed: int,
    captured: TrainGraph,
    initial: "InitialValues",
    replicas: Sequence["Replica"],
    batch_size: int,
) -> BaselineSession:
    from strategies.baselines.step import DistributedStep

    found = state.get(_Distributed).distribution
    distribution = found.strategy
    workload = built(distribution, case, seed, captured)
    distributed = DistributedStep(
        workload.body,
        workload.boundary,
        distribution,
        workload.structure,
        replicas,
        batch_size,
        weight_dtype=found.weight_dtype,
    )
    distributed.trace()
    variables = workload.variables(captured.variables)
    session = BaselineSession(distributed, distribution, captured.variables, variables, initial, replicas)
    # Before the first load every replica has what its initializer drew.
    session.load()
    return session
