"""Knobs shared by several families: micro-batches, synchronised batch norm, rows of equal ids."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from strategies.errors import StrategyError, first_few
from strategies.params import Param, Params
from strategies.plan.execution import Execution
from strategies.plan.schema import DENSE_SYNCHRONIZERS, PlanNode, SparseDuplicates, StepSummary
from strategies.plan.strategy import Strategy
from strategies.topology import Topology

ACCUMULATE = Param(
    name="accumulate",
    type=int,
    default=1,
    minimum=1,
    unit="micro-batches",
    summary="Micro-batches per replica between two synchronisations.",
)
SYNC_BATCH_NORM = Param(
    name="sync_batch_norm",
    type=bool,
    default=False,
    summary="Compute batch-norm statistics over the global batch, not per replica.",
)
KNOBS = (ACCUMULATE, SYNC_BATCH_NORM)


_ASK_FOR_NOTHING = {"sync": True, "accumulate": 1}
"""Values of knobs that change nothing, if they are neither 0 nor false."""


def first_set(params: Params, *knobs: str) -> str | None:
    """Return the first of these knobs that is set to more than nothing, as `knob=value`, or None.

    Text values do not count: a user's builder may use the same name for something else.
    """
    for knob in knobs:
        value = params.get(knob)
        if isinstance(value, int | float) and value != _ASK_FOR_NOTHING.get(knob, 0):
            return f"{knob}={str(value).lower()}"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Exclusion:
    """Knobs with a requirement, and the other knobs that conflict with it."""

    knobs: tuple[str, ...]
    needs: str
    others: tuple[str, ...]


_EXCLUSIONS = (
    _Exclusion(knobs=("sync_batch_norm",), needs="all examples at once", others=("accumulate",)),
    _Exclusion(knobs=("staleness", "backup"), needs="sync=true", others=("sync",)),
    _Exclusion(knobs=("backup",), needs="staleness=0", others=("staleness",)),
    _Exclusion(
        knobs=("accumulate", "sync_batch_norm"),
        needs="updates that wait for all workers",
        others=("sync", "staleness", "backup"),
    ),
    _Exclusion(knobs=("reshard",), needs="a loop of the host", others=("device_loop",)),
)


def check_exclusions(params: Params) -> None:
    """Refuse knobs that contradict each other.

    Raises:
        StrategyError: two knobs exclude each other; the message names the first pair.
    """
    for exclusion in _EXCLUSIONS:
        knob, other = first_set(params, *exclusion.knobs), first_set(params, *exclusion.others)
        if knob is not None and other is not None:
            raise StrategyError(f"{knob} needs {exclusion.needs}, got {other}; drop one of them")


MERGE_ROWS = Param(
    name="merge_rows",
    type=bool,
    default=False,
    summary="Sum sparse rows of equal ids before the update; changes Adam and Adagrad.",
)
ALWAYS_MERGED = replace(MERGE_ROWS, default=True, choices=(True,))
"""The same knob for strategies that cannot apply rows of equal ids one by one."""


def with_sparse_duplicates(
    strategy: Strategy, nodes: Sequence[PlanNode], step: StepSummary, topology: Topology, params: Params
) -> list[PlanNode]:
    """Return the nodes with their treatment of rows of equal ids.

    Rows are kept unless merging is requested, or changes no result and saves bytes. TensorFlow's own
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
    """Notes on variables whose updates are changed by merging."""
    linear = {v.name for v in step.variables if v.linear_rows}
    merged = [node.variable for node in nodes if node.sparse_duplicates == "merged"]
    merged = [name for name in merged if name not in linear]
    if not merged:
        return []
    note = (
        "merge_rows: rows of sparse gradients with equal ids are summed before the update, and the reference "
        f"does the same; an optimizer that squares or clips rows steps differently: {first_few(merged)}"
    )
    return [note]


def _with(node: PlanNode, duplicates: SparseDuplicates) -> PlanNode:
    return node.model_copy(update={"sparse_duplicates": duplicates if node.sparse else None})
