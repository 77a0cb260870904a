"""Target of a command: one workload under one strategy, captured and planned in a process of its own."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from harness.cluster import ClusterShape
from harness.errors import OUT_OF_MEMORY, UNSUPPORTED, CaseError, UsageError
from harness.experiment.cases import Case
from harness.experiment.chosen_strategy import choose
from harness.experiment.references import StrategyRef
from harness.measure.timeouts import Timeouts
from harness.prediction.slices import SliceCost
from harness.provision.accelerators import devices_of_workers, lack_of_tensorflow
from harness.provision.child_processes import ChildProcess, LocalWorkers, child_process
from harness.provision.failures import USER_ERROR
from harness.provision.temporary_folder import reap, run_folder
from harness.requests import Dtype, Target, VerifyRequest
from harness.run.failure_causes import naming_batch_size
from harness.run.process_setup import PreparedCase, ready_processes
from harness.run.progress import UNWATCHED, StatusLine
from harness.verification.captures import (
    CAPTURE_CHECK_STEPS,
    Capture,
    Captures,
    Restored,
    planned,
    topology_of_case,
)
from harness.verification.checks import first_steps, reference_of
from harness.verification.reference import Reference, Tolerances
from harness.verification.verification import BY_MORE_REFERENCES, Verification, without_more_references
from harness.verification.worker.capture import CapturedWorkload
from harness.worker.process.job import Args, Job, Result, job_name
from strategies.builders.tpu import on_cores, uneven_shares
from strategies.plan.schema import COMPARED_WITH_REFERENCE, Plan
from strategies.plan.traffic import PayloadMatrix
from strategies.planner import topology_of

SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTarget:
    """A captured and planned target.

    Attributes:
        batches: folder with its first global batches.
        folder: temporary folder of this command.
        timeouts: limits for this model.
    """

    case: Case
    capture: Capture
    plan: Plan
    batches: Path
    folder: Path
    timeouts: Timeouts
    _process: ChildProcess
    _captures: Captures

    def call(self, job: Job[*Args, Result], args: tuple[*Args]) -> Result:
        return self._process.call(job, args, timeout_s=self.timeouts.command_s, stage=job_name(job))

    def reference(self, n_steps: int) -> Reference:
        return reference_of(self._captures, self.case, self.capture, n_steps)

    def more_tolerances(self, n_steps: int) -> Tolerances:
        topology = topology_of_case(self.case, self.capture)
        return self._captures.more_tolerances(self.case, self.capture, topology, n_steps)


def shape_of(target: Target) -> ClusterShape:
    """Workers of a target, on this host."""
    return ClusterShape(
        workers=target.workers,
        replicas_per_worker=target.replicas,
        device=target.device,
        share_gpus=target.share_gpus,
    )


def _case(target: Target) -> Case:
    return Case(
        id="",
        workload=target.workload,
        strategy=target.strategy,
        shape=shape_of(target),
        batch_size=target.workload.batch_size,
    )


@contextmanager
def capture_and_plan(
    target: Target,
    *,
    n_batches: int,
    timeouts: Timeouts,
    restore: Path | None = None,
    checks_capture: bool = False,
    status: StatusLine = UNWATCHED,
) -> Iterator[PlannedTarget]:
    """Capture and plan a target; its files are deleted when the context ends.

    Args:
        restore: checkpoint with the initial values.
        checks_capture: True compares the capture with the workload's own step.
        status: line that shows progress.
    Raises:
        UsageError: the target cannot be used. CaseError: anything else went wrong.
    """
    case = _case(target)
    reap()
    with ExitStack() as stack:
        folder = stack.enter_context(run_folder())
        process = stack.enter_context(child_process(folder))
        captures = Captures(
            folder,
            process.call,
            seed=SEED,
            n_batches=n_batches,
            n_least=n_batches,
            restore=restore,
            timeouts=timeouts,
            n_check_steps=CAPTURE_CHECK_STEPS if checks_capture else 0,
        )
        try:
            with status.doing(f"starting TensorFlow and capturing {case.workload_name}"):
                capture, plan = planned(captures, case)
                with naming_batch_size(case.workload_name, plan.batch_size):
                    batches = captures.batches(case, capture)
            with naming_batch_size(case.workload_name, plan.batch_size):
                yield PlannedTarget(
                    case=case,
                    capture=capture,
                    plan=plan,
                    batches=batches,
                    folder=folder,
                    # Workers share the process.
                    timeouts=timeouts.for_model(capture.summary, case.shape.n_replicas),
                    _process=process,
                    _captures=captures,
                )
        except CaseError as error:
            if error.kind in (USER_ERROR, UNSUPPORTED, OUT_OF_MEMORY):
                raise UsageError(error.message, field=error.field) from error
            raise


def is_baseline(strategy: StrategyRef) -> bool:
    """Return True if a strategy is TensorFlow's own."""
    return choose(strategy).strategy.runner != "graph"


def refuse_what_workers_lack(request: VerifyRequest) -> None:
    """Refuse options that need all workers of a rewritten graph in one process.

    Raises:
        UsageError: the request has float64, a smaller last batch, the first pass that diverges, or bounds.
    """
    chosen = choose(request.target.strategy).strategy
    who = f"{request.target.strategy.name} runs on workers of its own"
    if request.dtype == "float64":
        raise UsageError(f"must be model where {who}; drop it", field="dtype")
    if request.last_batch is not None:
        raise UsageError(f"must be as large as the others where {who}; drop it", field="last_batch")
    if request.shrink:
        raise UsageError(f"names a pass, and {who}; drop it", field="shrink")
    if request.target.device != "cpu" and chosen.strategy_class not in COMPARED_WITH_REFERENCE:
        raise UsageError(
            f"{chosen.strategy_class} strategies are verified on CPUs, got {request.target.strategy.name}; "
            "drop it",
            field="device",
        )


def gpus_of_workers(shape: ClusterShape) -> tuple[tuple[str, ...], ...]:
    """UUIDs of each worker's GPUs on this host; empty on CPUs.

    Raises:
        ProvisionError: the host or its TensorFlow lacks what GPUs need.
    """
    lacking = lack_of_tensorflow(shape.hardware)
    if lacking is not None:
        raise lacking
    return devices_of_workers(shape)


def verify_on_workers(opened: PlannedTarget, n_steps: int) -> Verification:
    """Check a strategy against the reference, each worker in a process of its own.

    Raises:
        CaseError: the check could not be made. ProvisionError: workers cannot have their GPUs.
    """
    shape = opened.case.shape
    workers = LocalWorkers(folder=opened.folder, gpus=gpus_of_workers(shape))
    reference = opened.reference(n_steps)
    reference.require_finite(opened.plan.workload)
    prepared = PreparedCase(
        case=opened.case,
        seed=SEED,
        capture=opened.capture,
        plan=opened.plan,
        batches=opened.batches,
        logs=[opened.folder / f"worker-{k}.log" for k in range(shape.workers)],
    )
    with ready_processes(workers, prepared, opened.timeouts, are_checked=True) as (processes, programs):
        steps_per_loop = opened.plan.execution.steps_per_loop
        outcome = first_steps(processes, n_steps, opened.timeouts, steps_per_loop=steps_per_loop)
    verdict, notes = reference.judge(outcome), (*opened.plan.notes, *programs[0].notes)
    if reference.may_be_rounding(verdict, opened.plan.strategy_class):
        notes = (*notes, BY_MORE_REFERENCES)
        try:
            verdict = opened.more_tolerances(n_steps).judge_again(verdict)
        except CaseError as error:
            notes = (*notes, without_more_references(error))
    return Verification(
        strategy_class=opened.plan.strategy_class,
        verdict=verdict,
        losses=tuple(outcome.losses or ()),
        reference_losses=tuple(reference.losses),
        separability=reference.separability,
        warnings=opened.plan.warnings,
        notes=notes,
    )


FIELD = "last_batch"


def require_last_batch(n_examples: int, plan: Plan, facts: CapturedWorkload) -> None:
    """Refuse a last batch that the step or the plan cannot take.

    Args:
        facts: facts about the captured step.
    Raises:
        UsageError: the step or the plan cannot take it; the message says what to change.
    """
    topology = topology_of(plan)
    least = topology.n_shards
    if not least <= n_examples <= plan.batch_size:
        raise UsageError(
            f"must give each shard an example and be no larger than the others, got {n_examples}; choose one "
            f"from {least} to {plan.batch_size}",
            field=FIELD,
        )
    uneven = uneven_shares(replace(topology, batch_size=n_examples)) if on_cores(plan) else None
    if uneven is not None:
        raise UsageError(f"must be one that {plan.strategy} can share out: {uneven}", field=FIELD)
    if n_examples != plan.batch_size and facts.replica_batch is not None:
        raise UsageError(
            "needs a model that takes any number of examples, got one that takes "
            f"{facts.replica_batch} on each replica; drop it",
            field=FIELD,
        )
    if n_examples != plan.batch_size and facts.draws_from_ops:
        raise UsageError(
            "needs random numbers that continue from one program to the next, got a step that draws from "
            "operations' own states; draw with keras.random and a SeedGenerator, or drop it",
            field=FIELD,
        )
    if plan.strategy_class not in COMPARED_WITH_REFERENCE:
        raise UsageError(
            f"is compared for exact strategies, got {plan.strategy}, which is {plan.strategy_class}; drop it",
            field=FIELD,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """Result of comparing a plan with the reference.

    Attributes:
        restored: checkpoint with the initial values of both; None for the workload's own.
        last_batch: examples in the last step's batch; None for as many as in the others.
    """

    plan: Plan
    steps: int
    dtype: Dtype
    restored: Restored | None
    last_batch: int | None
    verification: Verification


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan, and its predicted cost on a TPU slice.

    Attributes:
        slice_cost: cost of its collectives; None without a TPU slice in the request.
        matrix: bytes between each two tasks; None if they are not requested.
    """

    plan: Plan
    slice_cost: SliceCost | None = None
    matrix: PayloadMatrix | None = None
