"""Verifying one of TensorFlow's own strategies: it rewrites no graph, so its real workers are checked."""

from harness.equivalence.verification import Verification, comparable
from harness.errors import UsageError
from harness.experiment.chosen_strategy import choose
from harness.experiment.references import StrategyRef
from harness.provision.local.child_processes import SoloWorkers
from harness.requests import VerifyRequest
from harness.run.case.check import check
from harness.run.case.ready import PreparedCase, ready_processes
from harness.study.target import SEED, TargetStudy


def is_baseline(strategy: StrategyRef) -> bool:
    """Whether a strategy is TensorFlow's own."""
    return choose(strategy).strategy.runner != "graph"


def refuse_what_needs_a_graph(request: VerifyRequest) -> None:
    """Say what cannot be asked of a strategy that rewrites no graph.

    Raises:
        UsageError: float64, a smaller last batch, or the first pass that diverges is asked for.
    """
    name = request.target.strategy.name
    if request.dtype == "float64":
        raise UsageError(
            f"float64 is a rewrite of the captured graph, and {name} runs the workload's own code; use "
            "--dtype model",
            field="dtype",
        )
    if request.last_batch is not None:
        raise UsageError(f"is for strategies that rewrite the graph, got {name}; drop it", field="last_batch")
    if request.shrink:
        raise UsageError(f"names a pass, and {name} has none; drop it", field="shrink")


def verify_baseline(opened: TargetStudy, n_steps: int) -> Verification:
    """Check a strategy of TensorFlow's own against the reference, each worker in a process of its own.

    Raises:
        CaseError: the check could not be made.
    """
    reference = comparable(opened.reference(n_steps))
    logs = [opened.folder / f"worker-{k}.log" for k in range(opened.case.shape.workers)]
    workers = SoloWorkers(folder=opened.folder)
    prepared = PreparedCase(
        case=opened.case,
        seed=SEED,
        capture=opened.capture,
        plan=opened.plan,
        batches=opened.batches,
        logs=logs,
    )
    with ready_processes(workers, prepared, opened.timeouts) as (processes, programs):
        checked = check(processes, reference, opened.timeouts)
    return Verification(
        strategy_class=opened.plan.strategy_class,
        verdict=checked.verdict,
        losses=checked.losses,
        reference_losses=reference.yardstick.losses,
        separability=reference.separability,
        warnings=opened.plan.warnings,
        notes=programs[0].notes,
    )
