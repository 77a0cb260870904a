"""Knobs that several families share: micro-batches, statistics of the whole batch, rows of equal ids."""

from collections.abc import Sequence

from strategies.errors import StrategyError, first_few
from strategies.plan.execution import Execution
from strategies.plan.schema import DENSE_SYNCHRONIZERS, PlanNode, SparseDuplicates, StepSummary
from strategies.plan.strategy import Param, Params, Strategy
from strategies.topology import Topology

ACCUMULATE = Param(name="accumulate", type=int, default=1, minimum=1)
SYNC_BATCH_NORM = Param(name="sync_batch_norm", type=bool, default=False)
KNOBS = (ACCUMULATE, SYNC_BATCH_NORM)


def check_waiting(params: Params, got: str) -> None:
    """Refuse micro-batches and whole-batch statistics if an update does not wait for all workers.

    Args:
        got: the contradicting knob.
    Raises:
        StrategyError: for the first that is given.
    """
    steps = Execution.of(params)
    k = steps.micro_batches
    asked = {f"{ACCUMULATE.name}={k}": k > 1, f"{SYNC_BATCH_NORM.name}=true": steps.global_statistics}
    knob = next((knob for knob, given in asked.items() if given), None)
    if knob is not None:
        raise StrategyError(f"{knob} needs updates that wait for all workers, got {got}; drop one of them")


def check_apart(params: Params) -> None:
    """Refuse micro-batches with whole-batch statistics: one micro-batch lacks the statistics of the others.

    Raises:
        StrategyError: both are given.
    """
    steps = Execution.of(params)
    if steps.micro_batches > 1 and steps.global_statistics:
        raise StrategyError(
            f"{SYNC_BATCH_NORM.name}=true needs all examples at once, got {ACCUMULATE.name}="
            f"{steps.micro_batches}; drop one of them"
        )


MERGE_ROWS = Param(name="merge_rows", type=bool, default=False)
ALWAYS_MERGED = Param(name=MERGE_ROWS.name, type=bool, default=True)
"""The same knob of strategies that cannot apply rows of equal ids one by one."""


def check_always_merged(strategy: str, params: Params, reason: str) -> None:
    """Refuse merge_rows=false if a strategy always sums rows of equal ids.

    Args:
        reason: why it sums them.
    Raises:
        StrategyError: merge_rows is false.
    """
    if params.get(MERGE_ROWS.name) is False:
        raise StrategyError(
            f"strategy {strategy!r}: {reason}, which sums rows of equal ids, got merge_rows=false; leave it "
            "out"
        )


def with_sparse_duplicates(
    strategy: Strategy, nodes: Sequence[PlanNode], step: StepSummary, topology: Topology, params: Params
) -> list[PlanNode]:
    """The nodes with their treatment of rows of equal ids.

    Rows are kept unless merging is asked for, or changes no result and saves bytes. TensorFlow's own
    strategies keep them.
    """
    if strategy.runner != "graph":
        return [_with(node, "kept") for node in nodes]
    if Execution.of(params).merges_rows:
        return [_with(node, "merged") for node in nodes]
    linear = {v.name for v in step.variables if v.linear_rows} if topology.n_replicas > 1 else set()

    def of(node: PlanNode) -> SparseDuplicates:
        crosses = node.synchronizer not in DENSE_SYNCHRONIZERS
        return "merged (linear)" if crosses and node.variable in linear else "kept"

    return [_with(node, of(node)) for node in nodes]


def merging_notes(nodes: Sequence[PlanNode], step: StepSummary) -> list[str]:
    """A note on variables whose updates merging changes."""
    linear = {v.name for v in step.variables if v.linear_rows}
    merged = [node.variable for node in nodes if node.sparse_duplicates == "merged"]
    merged = [name for name in merged if name not in linear]
    if not merged:
        return []
    note = (
        "merge_rows: rows of sparse gradients with equal ids are summed before the update, and the reference "
        f"does the same; an optimizer that squares or clips rows takes another step: {first_few(merged)}"
    )
    return [note]


def _with(node: PlanNode, duplicates: SparseDuplicates) -> PlanNode:
    return node.model_copy(update={"sparse_duplicates": duplicates if node.sparse else None})
