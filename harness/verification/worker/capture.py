"""Captures a case's workload into a folder, and lets a capture begin with a checkpoint."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import HarnessError, UsageError
from harness.experiment.cases import Case, global_batch
from harness.verification.verification import CaptureVerdict, not_comparable
from harness.worker.jobs.arithmetic import (
    allows_tf32,
    compute_exactly,
    own_choice_notes,
    precision_notes,
    step_in_precision,
    sum_alike,
)
from harness.worker.jobs.batches import Batch, first_batches
from harness.worker.jobs.workload import users_errors, workload_of
from harness.worker.process.job import JobState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.verification.worker.plain_step import AnyStep
    from harness.verification.worker.users_step import UsersStep
    from strategies.ir.train_graph import TrainGraph
    from strategies.ir.variable import Rule
    from strategies.plan.schema import StepSummary
    from workloads.protocol import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedWorkload:
    """Facts about a captured workload for the driver, which may not see its files.

    Attributes:
        summary: input of plan builders.
        batch_size: default global batch size.
        replica_batch: examples required in every shard; None for any number.
        draws: True if the step draws random numbers. draws_from_ops: True if an operation's own state gives
            them.
        evaluates: True if the workload can evaluate a trained model.
        verdict: comparison of the capture with the workload's own step; None if not requested.
    """

    summary: "StepSummary"
    batch_size: int
    flops_per_example: float | None
    replica_batch: int | None
    draws: bool = False
    draws_from_ops: bool = False
    evaluates: bool = False
    verdict: CaptureVerdict | None = None


def capture(
    state: JobState,
    case: Case,
    seed: int,
    folder: str,
    n_shards: int,
    n_check_steps: int,
    compiled_rules: "Mapping[str, Rule] | None",
) -> CapturedWorkload:
    """Capture a case's workload in its precision into a folder, once for all its ranks.

    Args:
        n_shards: number of shards of the case's global batch.
        n_check_steps: steps after which the capture is compared with the workload's own step; 0 for none.
        compiled_rules: rules for replicas that XLA compiles, with equal shards; see
            `strategies.capture.capture`.

    Raises:
        UsageError: the workload or its step cannot be used; the message says why.
        CaseError: `unsupported`, if its step does not follow the precision.
    """
    from workloads.data.examples import examples_of
    from workloads.precision import forget_models

    forget_models()
    # A model may run kernels while it is built.
    sum_alike(case.shape.hardware)
    allowed_tf32 = allows_tf32()
    workload = workload_of(case)
    with users_errors(workload, "reading the dataset"):
        examples = examples_of(workload, seed=seed)
    spec = examples.dataset.element_spec
    step, summary, users = _stored(
        case, workload, spec, seed, folder, n_shards, compiled_rules, allowed_tf32=allowed_tf32
    )
    verdict = None
    if n_check_steps:
        try:
            batches = first_batches(case, workload, examples, n_check_steps, n_check_steps)
        except HarnessError as error:
            # The reason is the shape of these cases; others can use the capture.
            verdict = not_comparable(error.message)
        else:
            verdict = _verdict(case, users, step, Path(folder), batches)
    return _facts(workload, step, summary, verdict)


def _stored(
    case: Case,
    workload: "Workload",
    element_spec: object,
    seed: int,
    folder: str,
    n_shards: int,
    compiled_rules: "Mapping[str, Rule] | None",
    *,
    allowed_tf32: bool,
) -> "tuple[TrainGraph, StepSummary, UsersStep]":
    """Capture the step and save it; its initial values are not kept in memory.

    Raises:
        UsageError, CaseError: see `capture`.
    """
    from harness.verification.worker.plain_step import PythonDraws
    from harness.verification.worker.users_step import UsersStep
    from harness.worker.session.capture_store import save, save_lines
    from strategies.capture.capture import capture as capture_step
    from strategies.errors import CaptureError
    from strategies.summary import summarise
    from workloads.precision import policy_of

    precision = case.computation.precision
    with policy_of(precision):
        built = _build(case, workload, element_spec, seed)
        draws, share = PythonDraws.now(), _even_share(case, workload, n_shards)
        try:
            captured = capture_step(
                built.step, element_spec, replica_batch=share, compiled_rules=compiled_rules
            )
        except CaptureError as error:
            raise UsageError(str(error), field=case.workload_name) from error
    notes = (
        *built.notes,
        *own_choice_notes(case.shape.hardware, allowed_before=allowed_tf32),
        *precision_notes(captured, precision, case.workload_name),
    )
    step = replace(captured.step, notes=(*notes, *captured.step.notes))
    save(Path(folder), step, captured.initial)
    save_lines(Path(folder), captured.lines)
    users = UsersStep(
        step=built.own,
        element_spec=element_spec,
        variables=captured.variables,
        returns_loss=captured.returns_loss,
        draws=draws,
        build=lambda: _build(case, workload_of(case), element_spec, seed).own,
    )
    return step, summarise(step, case.workload_name, captured.rows), users


def _facts(
    workload: "Workload", step: "TrainGraph", summary: "StepSummary", verdict: CaptureVerdict | None
) -> CapturedWorkload:
    from strategies.ir.random_ops import draws_at_random, draws_from_ops
    from workloads.protocol import EvaluatedWorkload

    fixed = [b.shape[0] for b in summary.batch if b.shape[0] != -1]
    return CapturedWorkload(
        summary=summary,
        batch_size=workload.batch_size,
        flops_per_example=workload.flops_per_example,
        replica_batch=fixed[0] if fixed else None,
        draws=draws_at_random(step.graph),
        draws_from_ops=draws_from_ops(step.graph),
        evaluates=isinstance(workload, EvaluatedWorkload),
        verdict=verdict,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Built:
    """A workload's step.

    Attributes:
        step: step to capture. own: step of its author, which may be a whole compiled model.
    """

    step: "AnyStep"
    own: "AnyStep"
    notes: tuple[str, ...]


def _build(case: Case, workload: "Workload", structure: object, seed: int) -> _Built:
    import keras

    from workloads.keras_step import step_of

    keras.utils.set_random_seed(seed)
    with users_errors(workload, "making the step", field=case.workload_name):
        built = step_of(workload, structure)
    step = step_in_precision(built.step, case.computation.precision, case.workload_name)
    own = step if built.model is None or step is not built.step else built.model
    return _Built(step=step, own=own, notes=built.notes)


def _verdict(
    case: Case, users: "UsersStep", step: "TrainGraph", folder: Path, batches: "Sequence[Batch]"
) -> CaptureVerdict:
    from harness.verification.worker.users_step import check_capture
    from harness.worker.session.capture_store import InitialValues
    from workloads.precision import policy_of

    compute_exactly(case.shape.hardware)
    with policy_of(case.computation.precision):
        return check_capture(users, step, InitialValues(folder), batches)


def restore(state: JobState, capture_folder: str, checkpoint: str) -> int | None:
    """Let a capture begin with the values of a checkpoint instead of its own.

    Returns:
        Number of steps before it; None if the checkpoint does not have it.
    Raises:
        UsageError: there is none, it is another model's, or it is damaged.
    """
    from harness.worker.session.capture_store import InitialValues, save_values
    from harness.worker.session.checkpoint import read_checkpoint

    folder = Path(capture_folder)
    initial = InitialValues(folder)
    restored = read_checkpoint(Path(checkpoint), {name: initial.stored(name) for name in initial.names})
    save_values(folder, restored.values)
    return restored.step


def _even_share(case: Case, workload: "Workload", n_shards: int) -> int | None:
    """Examples in every shard; None if shards differ, or the batch is too small.

    Planning reports a batch too small for one cluster shape; cases of other shapes can use the capture.
    """
    try:
        share, uneven = divmod(global_batch(case, workload.batch_size), n_shards)
    except UsageError:
        return None
    return None if uneven or not share else share
