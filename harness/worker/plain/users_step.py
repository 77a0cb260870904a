"""The captured step beside its author's own as plain TensorFlow, from the same values on the same batches."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import tensorflow as tf

from harness.equivalence.capture_verdict import CaptureVerdict, judge, not_comparable
from harness.equivalence.verdict import named
from harness.equivalence.yardstick import Array, Copy, Outcome, Yardstick
from harness.worker.plain.plain_step import AnyStep, PlainStep, PythonDraws, plain_step
from harness.worker.plain.same_draws import drawn_by, with_seeds_of
from harness.worker.session.capture_store import InitialValues
from harness.worker.session.session import WorkerSession
from harness.worker.session.tensorflow_settings import OWN_DEVICES, Use
from harness.worker.session.variable_parts import values_of
from harness.worker.verify.check import compared_variables, loss_eps, make_reference
from strategies.capture.boundary import variable_name
from strategies.ir.replicas.seeds import draws_from_ops
from strategies.ir.replicas.silence import quiet
from strategies.ir.train_graph import TrainGraph
from strategies.tf_bridge.graphdef import graph_from_graphdef
from strategies.tf_bridge.program import build_program
from strategies.topology import Topology
from strategies.user_errors import described, graph_error

Batches = Sequence[Sequence[Array]]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsersStep:
    """A step as its author wrote it.

    Attributes:
        element_spec: structure of `tf.TensorSpec` of one example.
        variables: captured name → variable, with its initial value.
        returns_loss: what it returns as its loss is that of the captured step.
        draws: with which it was traced.
    """

    step: AnyStep
    element_spec: object
    variables: Mapping[str, tf.Variable]
    returns_loss: bool
    draws: PythonDraws


@dataclass(frozen=True, slots=True, kw_only=True)
class _Both:
    """What both steps leave behind.

    Attributes:
        step: as captured, with the seeds that the user's step has.
        unknown: variables that only the user's step has.
        unlike: nodes that draw other random numbers than the user's step all the same.
    """

    step: TrainGraph
    users: Outcome
    captured: Outcome
    unknown: tuple[str, ...]
    unlike: tuple[str, ...]


def check_capture(
    users: UsersStep, step: TrainGraph, initial: InitialValues, batches: Batches
) -> CaptureVerdict:
    """Make steps of both and compare all variables and losses, in the model's own types.

    The user's variables have their initial values afterwards.

    Args:
        step: as captured. initial: its values, in its own types.
        batches: global ones, of which a step of a fixed batch takes the first examples.
    """
    n_fixed = next((b.shape.dims[0] for b in step.batch if b.shape.dims and b.shape.dims[0] > 0), None)
    batches = [[part[:n_fixed] for part in batch] for batch in batches]
    try:
        both = _both(users, quiet(step), initial, batches, n_fixed)
    except Exception as error:  # noqa: BLE001 - it is the user's code
        return not_comparable(f"one of the two raised {_reason(error)}")
    finally:
        for name, variable in users.variables.items():
            variable.assign(initial.value(name))
    drawn = drawn_by(both.step, both.unlike)
    compared = [v for v in compared_variables(step) if v.name in users.variables.keys() - drawn.variables]
    names = {v.name for v in compared}
    values = {copy: value for copy, value in both.captured.values.items() if copy[0] in names}
    expected = replace(both.captured, values=values)
    yardstick = Yardstick.of(
        compared,
        {copy: initial.value(copy[0], rank=copy[1]) for copy in values},
        expected,
        [expected],
        loss_eps=loss_eps(step),
    )
    alone = Topology(replicas_per_task=(1,), batch_size=len(batches[0][0]))
    verdict = judge(
        yardstick,
        both.users if users.returns_loss and not drawn.loss else replace(both.users, losses=()),
        lambda: make_reference(both.step, initial, alone, batches).yardstick,
        [*both.unknown, *sorted(drawn.variables)],
    )
    if not both.unlike or not verdict.equal:
        return verdict
    return not_comparable(
        f"{named(both.unlike)} draws random numbers from a state that no other program can have; draw with "
        "keras.random and a SeedGenerator, or give the operation a seed",
        verdict.not_compared,
    )


def _both(
    users: UsersStep, step: TrainGraph, initial: InitialValues, batches: Batches, n_fixed: int | None
) -> _Both:
    """Make the steps of both.

    Args:
        n_fixed: examples that a step takes, None for any number.
    """
    with ThreadPoolExecutor(1, "captured") as beside:
        captured: Future[Outcome] | None = None
        if not draws_from_ops(step.graph):
            # Tracing takes one core.
            captured = beside.submit(_captured_outcome, step, initial, batches)
        users.draws.resume()
        own = plain_step(users.step, users.element_spec, n_fixed)
        unlike: tuple[str, ...] = ()
        if captured is None:
            step, unlike = with_seeds_of(step, graph_from_graphdef(own.concrete.graph.as_graph_def()))
            captured = beside.submit(_captured_outcome, step, initial, batches)
        return _Both(
            step=step,
            users=_own_outcome(own, users.variables, batches),
            captured=captured.result(),
            unknown=tuple(_unknown(users, own)),
            unlike=unlike,
        )


def _captured_outcome(step: TrainGraph, initial: InitialValues, batches: Batches) -> Outcome:
    """State and losses after the whole captured step was made on each batch, without any pass."""
    alone = Topology(replicas_per_task=(1,), batch_size=len(batches[0][0]))
    program = build_program(step, alone, 0, nodes_before=len(step.graph.nodes))
    session = WorkerSession(program, OWN_DEVICES, initial, use=Use.AS_WRITTEN)
    try:
        session.load()
        session.setup()
        losses = [float(session.step(batch)[0]) for batch in batches]
        return Outcome(values=values_of([session.read()]), losses=losses)
    finally:
        session.close()


def _own_outcome(own: PlainStep, variables: Mapping[str, tf.Variable], batches: Batches) -> Outcome:
    """State and losses after the user's step was made on each batch."""
    losses = [own(batch) for batch in batches]
    # Shares a variable's memory, until that is assigned to.
    values: dict[Copy, Array] = {(name, None): np.asarray(v.read_value()) for name, v in variables.items()}
    return Outcome(values=values, losses=[loss for loss in losses if loss is not None])


def _unknown(users: UsersStep, own: PlainStep) -> list[str]:
    """Variables that the user's step uses and no capture knows."""
    captured = {id(v.handle) for v in users.variables.values()}
    return [variable_name(v) for v in own.concrete.graph.variables if id(v.handle) not in captured]


def _reason(error: Exception) -> str:
    return graph_error(error.message) if isinstance(error, tf.errors.OpError) else described(error)
