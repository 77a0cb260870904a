"""Verification on real workers: of TensorFlow's own strategies, and of rewritten graphs on GPUs."""

from harness.cluster.shape import ClusterShape
from harness.equivalence.verification import Verification, comparable
from harness.errors import UsageError
from harness.experiment.chosen_strategy import choose
from harness.experiment.references import StrategyRef
from harness.provision.accelerators import devices_of_workers, lack_of_tensorflow
from harness.provision.local.child_processes import SoloWorkers
from harness.requests import VerifyRequest
from harness.run.case.check import check
from harness.run.case.ready import PreparedCase, ready_processes
from harness.study.target import SEED, TargetStudy
from strategies.plan.schema import HELD_TO_THE_REFERENCE


def is_baseline(strategy: StrategyRef) -> bool:
    """Return True if a strategy is TensorFlow's own."""
    return choose(strategy).strategy.runner != "graph"


def refuse_what_workers_lack(request: VerifyRequest) -> None:
    """Refuse what is looked at only where all workers of a rewritten graph share a process.

    Raises:
        UsageError: float64, a smaller last batch, the first pass that diverges, or bounds are asked for.
    """
    chosen = choose(request.target.strategy).strategy
    who = f"{request.target.strategy.name} runs on workers of its own"
    if request.dtype == "float64":
        raise UsageError(f"must be model where {who}; drop it", field="dtype")
    if request.last_batch is not None:
        raise UsageError(f"must be as large as the others where {who}; drop it", field="last_batch")
    if request.shrink:
        raise UsageError(f"names a pass, and {who}; drop it", field="shrink")
    if request.target.device != "cpu" and chosen.strategy_class not in HELD_TO_THE_REFERENCE:
        raise UsageError(
            f"{chosen.strategy_class} strategies are verified on CPUs, got {request.target.strategy.name}; "
            "drop it",
            field="device",
        )


def gpus_of_workers(shape: ClusterShape) -> tuple[tuple[str, ...], ...]:
    """UUIDs of each worker's GPUs on this host; none on CPUs.

    Raises:
        ProvisionError: the host or its TensorFlow lacks what GPUs need.
    """
    lacking = lack_of_tensorflow(shape.hardware)
    if lacking is not None:
        raise lacking
    return devices_of_workers(shape)


def verify_on_workers(opened: TargetStudy, n_steps: int) -> Verification:
    """Check a strategy against the reference, each worker in a process of its own.

    Raises:
        CaseError: the check could not be made. ProvisionError: workers cannot have their GPUs.
    """
    shape = opened.case.shape
    workers = SoloWorkers(folder=opened.folder, gpus=gpus_of_workers(shape))
    reference = comparable(opened.reference(n_steps))
    prepared = PreparedCase(
        case=opened.case,
        seed=SEED,
        capture=opened.capture,
        plan=opened.plan,
        batches=opened.batches,
        logs=[opened.folder / f"worker-{k}.log" for k in range(shape.workers)],
    )
    with ready_processes(workers, prepared, opened.timeouts, are_checked=True) as (processes, programs):
        checked = check(
            processes,
            reference,
            opened.timeouts,
            steps_per_loop=opened.plan.execution.steps_per_loop,
        )
    return Verification(
        strategy_class=opened.plan.strategy_class,
        verdict=checked.verdict,
        losses=checked.losses,
        reference_losses=reference.yardstick.losses,
        separability=reference.separability,
        warnings=opened.plan.warnings,
        notes=(*opened.plan.notes, *programs[0].notes),
    )
