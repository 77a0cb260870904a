"""`stratbench verify`: comparison of a strategy with a single device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import options, output
from harness.cli.documents import verify_document
from harness.cli.output import Answer
from harness.cli.process import WorkerOptions, is_watched, isolate
from harness.errors import EXIT_CASE, EXIT_OK
from harness.measure.timeouts import timeouts
from harness.provision.network_namespace import exposed_line
from harness.requests import Target, VerifyRequest
from harness.verification.verdict import named

if TYPE_CHECKING:
    from harness.planned_target import Verified
    from harness.verification.reference import ComparedResult
    from harness.verification.verdict import VariableVerdict
    from harness.verification.verification import Verification

EXAMPLE = "stratbench verify digits-mlp --strategy all-reduce --workers 2"

_N_WORST = 5


class Precision(StrEnum):
    """Number type of the computation."""

    MODEL = "model"
    FLOAT64 = "float64"


class Device(StrEnum):
    """Devices of this host that a strategy can be verified on."""

    CPU = "cpu"
    GPU = "gpu"


def verify(
    context: typer.Context,
    target_options: options.TargetOptions,
    *,
    device: Annotated[
        Device, typer.Option("--device", help="Run on this machine's CPUs or GPUs.")
    ] = Device.CPU,
    share_gpus: options.ShareGpus = False,
    steps: Annotated[
        int, typer.Option("--steps", metavar="K", min=1, help="Training steps before the comparison.")
    ] = 4,
    last_batch: Annotated[
        int | None,
        typer.Option("--last-batch", metavar="N", min=1, help="Size of the last batch [default: full]."),
    ] = None,
    dtype: Annotated[
        Precision | None,
        typer.Option(
            "--dtype",
            help="Precision: float64 (default on CPUs), or the model's own (GPUs, tf-*).",
        ),
    ] = None,
    restore: options.Restore = None,
    shrink: Annotated[
        bool, typer.Option("--shrink", help="Find the first graph pass and variable that diverge.")
    ] = False,
    worker_options: WorkerOptions,
) -> Answer:
    """Prove that a strategy trains like one device.

    After the same steps, every weight and optimizer slot must equal those of a single-device run.
    """
    exposure = isolate(context, worker_options)
    request = VerifyRequest(
        target=target_options.target(options.Hardware(device.value), share_gpus=share_gpus),
        steps=steps,
        last_batch=last_batch,
        dtype=None if dtype is None else dtype.value,
        restore=restore,
        shrink=shrink,
        live=is_watched(context),
        timeouts=timeouts(worker_options.timeout_factor),
    )
    from harness import pipeline

    verified = pipeline.verify(request)
    if exposure is not None:
        # Warn only after success: a user's mistake prints nothing else.
        output.warn(exposed_line(exposure))
    return Answer(
        document=verify_document(verified),
        show=partial(_show, verified, request.target),
        exit_status=EXIT_OK if verified.verification.passes else EXIT_CASE,
    )


_REFERENCE = "a single-device run on the same shards"
_EMULATED = "TPU cores were emulated on processors: this checks the program, not a TPU"
_TWO_QUESTIONS = (
    "EQUIVALENT compares the strategy with one device on the same shards. NOT SEPARABLE compares shards with "
    "the whole batch: training depends on the number of replicas."
)


def _show(verified: Verified, target: Target) -> None:
    verification = verified.verification
    output.print_line(_verdict(verified, target))
    if verification.undecidable and verification.passes and verification.strategy_class != "statistical":
        # A failed verification names them in its reason.
        output.print_line(
            f"UNDECIDED: {named(verification.undecidable)}: the update is zero or no larger than rounding"
        )
    if verification.separability is not None:
        word = {True: "SEPARABLE", False: "NOT SEPARABLE", None: "SEPARABILITY UNKNOWN"}
        output.print_line(
            f"{word[verification.separability.separable]}: {verification.separability.explanation}"
        )
    if verification.capture is not None and not verification.is_captured_wrong:
        # A wrong capture is the reason for the verdict.
        compared = "CAPTURED AS WRITTEN" if verification.capture.equal else "CAPTURE NOT COMPARED"
        output.print_line(f"{compared}: {verification.capture.explanation}")
    for text in verification.warnings:
        output.print_line(f"warning: {text}")
    for text in _notes(verified):
        output.print_line(f"note: {text}")
    _show_variables(verification)
    _show_results(verification.results)
    if verification.divergence is not None:
        output.print_line()
        output.print_line(
            f"first divergence: after pass {verification.divergence.pass_name}, in variable "
            f"{verification.divergence.variable}"
        )


def _notes(verified: Verified) -> Iterator[str]:
    from strategies.builders.tpu import on_cores

    if on_cores(verified.plan):
        yield _EMULATED
    separability = verified.verification.separability
    if separability is not None and separability.separable is False:
        yield _TWO_QUESTIONS
    yield from verified.verification.notes


def _show_variables(verification: Verification) -> None:
    """Variables closest to their tolerance; without tolerances, weights with the largest differences."""
    everything: Sequence[VariableVerdict] = verification.verdict.variables
    figures, title, variables = (
        ["update error", "tolerance", "noise floor"],
        "closest to their tolerance",
        verification.verdict.by_error,
    )
    if not verification.is_held_to_the_reference:
        figures, title = figures[:1], "largest differences from the exact reference"
        # Another number of updates says nothing about weights.
        everything = _trainables(verification)
        variables = sorted(everything, key=lambda v: v.update_error, reverse=True)
    if not variables:
        return
    rows = [
        (v.name, v.kind, *map(output.number, (v.update_error, v.limits.tolerance, v.limits.floor)))
        for v in variables[:_N_WORST]
    ]
    output.print_line()
    output.table(
        [f"{title}, {len(rows)} of {len(everything)}", "kind", *figures],
        [row[: 2 + len(figures)] for row in rows],
    )


def _show_results(results: Sequence[ComparedResult]) -> None:
    if not results:
        return
    output.print_line()
    output.table(
        ["results of the last step", "rule", "each replica", "all replicas", "reference", "error"],
        [
            [
                result.name,
                str(result.rule),
                ", ".join(map(_scalar, result.per_shard)),
                *(
                    f"of shape {list(result.shape)}" if result.shape else _scalar(value)
                    for value in (result.value, result.reference_value)
                ),
                output.number(result.error),
            ]
            for result in results
        ],
    )


def _scalar(value: object) -> str:
    if value is None:
        return "-"
    return output.number(value) if isinstance(value, float) else str(value)


def _verdict(verified: Verified, target: Target) -> str:
    verification, plan = verified.verification, verified.plan
    # The name comes from its file; parameters are those of the command.
    strategy = replace(target.strategy, name=plan.strategy)
    workload = replace(target.workload, reference=plan.workload)
    subject = (
        f"{_word(verification)}: {strategy} ({plan.strategy_class}) on {workload}, "
        f"{len(plan.replicas_per_task)} workers x {plan.replicas_per_task[0]} replicas"
    )
    parts = (_comparison(verification), verification.reason or _closest(verification))
    return f"{subject}: after {verified.steps} steps in {verified.dtype}, {'; '.join(filter(None, parts))}"


def _comparison(verification: Verification) -> str | None:
    """Variables that equal those of the reference, or differ; None if the reason is another one."""
    if verification.is_captured_wrong:
        return None
    if verification.bound is not None and verification.bound.within:
        return "no gradient lost more than its compressor's bound in a step, and all else equals one device"
    if verification.bound is not None:
        return "losses of compressed gradients are compared with bounds, all else with one device"
    if not verification.is_held_to_the_reference:
        largest = output.number(max((v.update_error for v in _trainables(verification)), default=0.0))
        return f"weights are off from those of {_REFERENCE} by up to {largest} of their update"
    variables = verification.verdict.variables
    n_wrong = sum(v.wrong for v in variables)
    if verification.equivalent:
        counted, verbs = len(variables) - len(verification.undecidable), ("equals", "equal")
    elif n_wrong:
        counted, verbs = n_wrong, ("differs from", "differ from")
    else:
        return None
    count = f"all {counted}" if counted == len(variables) > 1 else f"{counted} of {len(variables)}"
    noun, those = ("variable", "that") if len(variables) == 1 else ("variables", "those")
    return f"{count} {noun} (weights, optimizer slots, state) {verbs[counted != 1]} {those} of {_REFERENCE}"


def _trainables(verification: Verification) -> list[VariableVerdict]:
    return [v for v in verification.verdict.variables if v.kind == "trainable"]


def _closest(verification: Verification) -> str | None:
    """Error that uses most of its tolerance or bound."""
    if verification.bound is not None:
        loss = verification.bound.worst
        return (
            None
            if loss is None
            else f"closest: {loss.where} lost {loss.error:.3g} of at most {loss.bound:.3g}"
        )
    nearest = verification.verdict.nearest
    if nearest is None or not verification.is_held_to_the_reference:
        return None
    error, tolerance = output.number(nearest.update_error), output.number(nearest.limits.tolerance)
    return f"closest to its tolerance: {error} of {tolerance} ({nearest.name}, relative to its update)"


def _word(verification: Verification) -> str:
    if verification.is_captured_wrong:
        return "NOT CAPTURED AS WRITTEN"
    if verification.strategy_class == "statistical":
        return "NOT JUDGED, trains differently by design"
    if verification.bound is not None:
        words = {True: "WITHIN ITS BOUND", False: "BEYOND ITS BOUND", None: "UNDECIDABLE"}
        return words[verification.bound.within]
    return {True: "EQUIVALENT", False: "NOT EQUIVALENT", None: "UNDECIDABLE"}[verification.equivalent]
