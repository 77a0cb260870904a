"""Figures of a case's workers, read after its last window."""

from collections.abc import Mapping
from dataclasses import replace

from harness.errors import UNSUPPORTED, CaseError, first_line
from harness.measure.timeouts import USUAL, Timeouts
from harness.provision.protocols import ProcessSet
from harness.records.outcome import Aggregated, Resharding
from harness.worker.counters.read import memory_left
from harness.worker.jobs import after_repeats, training
from harness.worker.jobs.after_repeats import codec_seconds, gather_checkpoint
from harness.worker.jobs.xla import compiled_clusters
from harness.worker.variable_parts import Array, values_of
from strategies.ir.graph import n_elements
from strategies.plan.faults import sending_wrong
from strategies.plan.schema import Plan, StepSummary
from strategies.topology import UPDATER


def variable_bytes(processes: ProcessSet, timeouts: Timeouts = USUAL) -> tuple[int, ...]:
    """Bytes of variables and slots in the memory of each worker of a loaded session."""
    n_workers = len(processes.pids)
    sizes: dict[tuple[int, str], int] = {}
    for known in processes.call(
        training.held_bytes, [()] * n_workers, timeout_s=timeouts.setup_s, stage="collect"
    ):
        sizes |= known  # several workers know the variables of one server
    return tuple(sum(n for (task, _), n in sizes.items() if task == worker) for worker in range(n_workers))


def slowest_codec_s(
    processes: ProcessSet, plan: Plan, timeouts: Timeouts
) -> tuple[float | None, tuple[str, ...]]:
    """See `harness.worker.jobs.after_repeats`; time of the slowest worker, None without a compressor.

    A failure here does not fail the case, whose windows are measured: the time is None, with a note.
    """
    if not any(node.compressor for node in plan.nodes):
        return None, ()
    args = [(plan,)] * len(processes.pids)
    try:
        return max(processes.call(codec_seconds, args, timeout_s=timeouts.setup_s, stage="collect")), ()
    except CaseError as error:
        return None, (f"encoding was not timed by itself: {first_line(str(error))}",)


def update_notes(processes: ProcessSet, plan: Plan, timeouts: Timeouts) -> tuple[str, ...]:
    """Notes on used and dropped updates; none if all workers wait for all."""
    if plan.strategy_class != "statistical":
        return ()
    notes = processes.call(
        training.update_notes, [()] * len(processes.pids), timeout_s=timeouts.setup_s, stage="collect"
    )
    return tuple(note for of_worker in notes for note in of_worker)


def resharding(processes: ProcessSet, plan: Plan, timeouts: Timeouts) -> Resharding | None:
    """Cost of resharding around host loops; None if nothing is partitioned."""
    if not any(node.in_parts for node in plan.nodes):
        return None
    args = [()] * len(processes.pids)
    counted = processes.call(training.resharding, args, timeout_s=timeouts.setup_s, stage="collect")
    return Resharding.of([replica for of_worker in counted for replica in of_worker])


def aggregated(processes: ProcessSet, plan: Plan, step: StepSummary, timeouts: Timeouts) -> Aggregated | None:
    """Counts and cost of a rule on workers' gradients; None if they are added up."""
    rows, rule = aggregation_rule(plan), plan.aggregation
    if rows is None or rule is None:
        return None
    dense = [v for v in step.variables if v.kind == "trainable" and v.synced and not v.sparse]
    everywhere = any(node.synchronizer == "robust-gather" for node in plan.nodes)
    device = "/GPU:0" if plan.device == "gpu" and everywhere else "/CPU:0"
    args = [()] * len(processes.pids)
    counted = processes.call(
        after_repeats.aggregation_counts, args, timeout_s=timeouts.setup_s, stage="collect"
    )
    # If every worker aggregates for itself, all counts are equal.
    counts = next((counts_of_worker for counts_of_worker in counted if counts_of_worker), None)
    taken_s = processes.call_one(
        UPDATER,
        after_repeats.aggregation_seconds,
        (rule, sum(n_elements(v.shape) for v in dense), device),
        timeout_s=timeouts.command_s,
        stage="collect",
    )
    chosen, not_finite, steps = counts or (None, None, None)
    return replace(
        rows,
        rule_s=None if taken_s is None else taken_s[0],
        mean_s=None if taken_s is None else taken_s[1],
        n_steps=None if steps is None else max(steps),
        chosen=None if chosen is None else tuple(chosen),
        not_finite=None if not_finite is None else tuple(not_finite),
    )


def aggregation_rule(plan: Plan) -> Aggregated | None:
    """Aggregation rule of a plan; None if gradients are added up."""
    aggregation = plan.aggregation
    if aggregation is None:
        return None
    return Aggregated(
        rule=aggregation.rule,
        n=aggregation.n,
        f=aggregation.f,
        n_faulty=len(sending_wrong(plan.faults)),
        selects=aggregation.selects,
    )


def last_values(processes: ProcessSet, step: StepSummary, timeouts: Timeouts) -> dict[str, Array]:
    """Values of a model's variables by name; no step may be in flight."""
    n_workers = len(processes.pids)
    processes.call(training.settle, [(n_workers,)] * n_workers, timeout_s=timeouts.save_s, stage="collect")
    shared = frozenset(v.name for v in step.variables if v.rule != "per-replica")
    args = [(shared, False)] * n_workers
    gathered = processes.call(gather_checkpoint, args, timeout_s=timeouts.save_s, stage="collect")
    return {name: value for name, value in values_of(gathered).items() if name in shared}


def memory_left_bytes(processes: ProcessSet, timeouts: Timeouts) -> Mapping[str, int]:
    """Free memory: of the worker with the least, and of each GPU, by UUID."""
    args = [()] * len(processes.pids)
    left: dict[str, int] = {}
    for known in processes.call(memory_left, args, timeout_s=timeouts.setup_s, stage="collect"):
        left |= {place: min(n_bytes, left.get(place, n_bytes)) for place, n_bytes in known.items()}
    return left


def compiled_notes(processes: ProcessSet, period: int, timeouts: Timeouts) -> tuple[str, ...]:
    """Sentences on operations that XLA compiled, and those that it left out.

    Raises:
        CaseError: `unsupported`, if it compiled nothing.
    """
    notes = processes.call(
        compiled_clusters,
        [(period,)] * len(processes.pids),
        timeout_s=timeouts.steps_s(period, []),
        stage="collect",
    )
    drawn = sorted({draw for of_worker in notes for draw in of_worker.draws})
    if drawn:
        raise CaseError(
            UNSUPPORTED,
            "XLA compiled random operations, which then draw other numbers than the captured step: "
            f"{', '.join(drawn)}; set measure.xla=false for this workload",
            stage="collect",
        )
    n_compiled = sum(note.n_compiled for note in notes)
    if not n_compiled:
        raise CaseError(
            UNSUPPORTED,
            "XLA compiled no operation of the step; set measure.xla=false for this workload",
            stage="collect",
        )
    n_clusters, n_left = sum(note.n_clusters for note in notes), sum(note.n_left for note in notes)
    clusters = f"{n_clusters} cluster{'' if n_clusters == 1 else 's'}"
    return (f"XLA compiled {n_compiled} operations in {clusters}, {n_left} are outside, on all workers",)
