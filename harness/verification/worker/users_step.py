"""Comparison of a captured step with its author's own, run as plain TensorFlow from the same values."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import numpy as np
import tensorflow as tf

from harness.verification.reference import Outcome, Reference
from harness.verification.verdict import named
from harness.verification.verification import CaptureVerdict, fault, judge_capture, not_comparable
from harness.verification.worker.check import compared_variables, loss_eps, make_reference
from harness.verification.worker.plain_step import (
    AnyStep,
    PlainStep,
    PythonDraws,
    are_alike,
    drawn_by,
    plain_step,
    with_seeds_of,
)
from harness.worker.session.capture_store import InitialValues
from harness.worker.session.session import WorkerSession
from harness.worker.session.tensorflow_settings import OWN_DEVICES, Use
from harness.worker.variable_parts import Array, Copy, values_of
from strategies.capture.boundary import variable_name
from strategies.capture.tracing import CapturableStep
from strategies.ir.random_ops import draws_from_ops
from strategies.ir.resource_uses import resource_uses
from strategies.ir.side_effects import FILE_WRITERS, without_visible_effects
from strategies.ir.train_graph import TrainGraph
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
        returns_loss: True if the returned loss is that of the captured step.
        draws: states of Python's random generators when capture traced it.
        build: builds the same step again, as for the capture.
    """

    step: AnyStep
    element_spec: object
    variables: Mapping[str, tf.Variable]
    returns_loss: bool
    draws: PythonDraws
    build: Callable[[], AnyStep]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Both:
    """Outcomes of both steps.

    Attributes:
        step: the captured step, with the seeds of the user's.
        unknown: variables that only the user's step uses, without assigning to them.
        unlike: nodes that draw other random numbers than the user's step despite those seeds.
    """

    step: TrainGraph
    users: Outcome
    captured: Outcome
    unknown: tuple[str, ...]
    unlike: tuple[str, ...]


class _EndedError(Exception):
    def __init__(self, verdict: CaptureVerdict) -> None:
        super().__init__(verdict.explanation)
        self.verdict = verdict


def check_capture(
    users: UsersStep, step: TrainGraph, initial: InitialValues, batches: Batches
) -> CaptureVerdict:
    """Run both steps and compare all variables and losses, in the model's own types.

    The user's variables have their initial values afterwards.

    Args:
        step: captured step. initial: initial values, in its own types.
        batches: global batches; a step with a fixed batch size uses their first examples.
    """
    n_fixed = next((b.shape.dims[0] for b in step.batch if b.shape.dims and b.shape.dims[0] > 0), None)
    batches = [[part[:n_fixed] for part in batch] for batch in batches]
    try:
        verdict = _verdict(users, without_visible_effects(step), initial, batches, n_fixed)
    except _EndedError as ended:
        verdict = ended.verdict
    finally:
        _restore(users.variables, initial)
    if verdict.equal is not False or is_traced_alike(users, n_fixed):
        return verdict
    return not_comparable(
        "each trace of its Python code makes another step, because the code counts, draws or chooses by "
        "Python state; do that in the dataset, or before the step is returned"
    )


def _verdict(
    users: UsersStep, step: TrainGraph, initial: InitialValues, batches: Batches, n_fixed: int | None
) -> CaptureVerdict:
    both = _both(users, step, initial, batches, n_fixed)
    drawn = drawn_by(both.step, both.unlike)
    compared = [v for v in compared_variables(step) if v.name in users.variables.keys() - drawn.variables]
    names = {v.name for v in compared}
    values = {copy: value for copy, value in both.captured.values.items() if copy[0] in names}
    before = {copy: initial.value(copy[0], rank=copy[1]) for copy in values}
    expected = replace(both.captured, values=values, initial=before)
    reference = Reference.of(compared, expected, [expected], loss_eps=loss_eps(step))
    alone = Topology(replicas_per_task=(1,), batch_size=len(batches[0][0]))
    make = partial(make_reference, both.step, initial, alone, batches)
    verdict = judge_capture(
        reference,
        both.users if users.returns_loss and not drawn.loss else replace(both.users, losses=None),
        lambda: make().tolerances,
        lambda: make(thorough=True).tolerances,
        [*([] if users.returns_loss else ["loss"]), *both.unknown, *sorted(drawn.variables)],
    )
    if not both.unlike or not verdict.equal:
        return verdict
    return not_comparable(
        f"{named(both.unlike)} draws random numbers without a seed, which cannot be repeated; draw with "
        "keras.random and a SeedGenerator, or give the operation a seed",
        verdict.not_compared,
    )


def is_traced_alike(users: UsersStep, n_fixed: int | None) -> bool:
    """True if the first two traces of the step, built again, are the same graph."""
    try:
        step = users.build()
        if isinstance(step, CapturableStep) and not step.optimizer.built:
            # As in capture; otherwise the first trace would build it.
            step.optimizer.build(list(step.variables))
        traces = []
        for _ in range(2):
            users.draws.resume()
            traces.append(plain_step(step, users.element_spec, n_fixed))
        return are_alike(*traces)
    except Exception:  # noqa: BLE001  a failure to find the cause must not replace the verdict
        return True


def _both(
    users: UsersStep, step: TrainGraph, initial: InitialValues, batches: Batches, n_fixed: int | None
) -> _Both:
    unlike: tuple[str, ...] = ()
    with ThreadPoolExecutor(1, "captured") as beside:
        captured: Future[Outcome] | None = None
        if not draws_from_ops(step.graph):
            # Tracing takes one core.
            captured = beside.submit(_captured_outcome, step, initial, batches)
        with _ending(_own_raised):
            users.draws.resume()
            own = plain_step(users.step, users.element_spec, n_fixed)
        unknown = _unknown(users, own)
        _require_comparable(own, unknown)
        if captured is None:
            step, unlike = with_seeds_of(step, own.graph)
            captured = beside.submit(_captured_outcome, step, initial, batches)
        with _ending(_own_raised):
            outcome = _own_outcome(own, users.variables, batches)
        with _ending(_captured_raised):
            return _Both(
                step=step,
                users=outcome,
                captured=captured.result(),
                unknown=tuple(unknown.values()),
                unlike=unlike,
            )


@contextmanager
def _ending(verdict_on: Callable[[Exception], CaptureVerdict]) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise _EndedError(verdict_on(error)) from error


def _own_raised(error: Exception) -> CaptureVerdict:
    return not_comparable(
        f"the workload's own step raised {_reason(error)} as plain TensorFlow; make it run outside "
        "stratbench first"
    )


def _captured_raised(error: Exception) -> CaptureVerdict:
    if isinstance(error, MemoryError | tf.errors.ResourceExhaustedError):
        # Both are in memory at once.
        return not_comparable(f"memory ran out, {_reason(error)}; make the batch or the model smaller")
    return fault(
        f"the captured step raised {_reason(error)}, and the workload's own runs as plain TensorFlow"
    )


def _require_comparable(own: PlainStep, unknown: Mapping[str, str]) -> None:
    """End the check if the traced step shows that its outcome would be incomplete or harmful.

    Args:
        unknown: result of `_unknown`.
    """
    handles = tuple(replace(n, op="VarHandleOp") if n.name in unknown else n for n in own.graph.nodes)
    uses = resource_uses(replace(own.graph, nodes=handles))
    if lost := [name for node, name in unknown.items() if uses[node].writes]:
        raise _EndedError(
            fault(f"the workload's own step assigns to {named(lost)}, and the captured one does not")
        )
    graphs = (own.graph.nodes, *(function.nodes for function in own.graph.functions.values()))
    if writing := sorted({node.op for node in chain.from_iterable(graphs)} & FILE_WRITERS):
        reason = f"it writes files ({named(writing)}), which the comparison would write twice more"
        raise _EndedError(not_comparable(f"{reason}; leave that out of the step"))


def _restore(variables: Mapping[str, tf.Variable], initial: InitialValues) -> None:
    """Restore the initial values of the user's variables, as far as these accept them."""
    for name, variable in variables.items():
        # A failure must not replace the verdict; a later capture uses the current values.
        with suppress(Exception):
            variable.assign(initial.value(name))


def _captured_outcome(step: TrainGraph, initial: InitialValues, batches: Batches) -> Outcome:
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
    losses = [own(batch) for batch in batches]
    # An array shares its variable's memory until the next assignment.
    values: dict[Copy, Array] = {(name, None): np.asarray(v.read_value()) for name, v in variables.items()}
    return Outcome(values=values, losses=[loss for loss in losses if loss is not None] or None)


def _unknown(users: UsersStep, own: PlainStep) -> dict[str, str]:
    """Variables that the user's step uses, but capture did not: node of the handle → name."""
    nodes = {id(outside): inside.op.name for outside, inside in own.concrete.graph.captures}
    captured = {id(v.handle) for v in users.variables.values()}
    variables = own.concrete.graph.variables
    return {nodes[id(v.handle)]: variable_name(v) for v in variables if id(v.handle) not in captured}


def _reason(error: Exception) -> str:
    return graph_error(error.message) if isinstance(error, tf.errors.OpError) else described(error)
