"""The reference: what a synchronous strategy must compute, on one device and without any pass.

Shards are those of replicas, or of their micro-batches; `shard_steps` takes them.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from harness.equivalence.step_results import Returned
from harness.equivalence.yardstick import Array, Copy, Outcome
from harness.worker.session.capture_store import InitialValues
from harness.worker.verify.rounding import PLAIN, Crossed, Rounding
from harness.worker.verify.shard_steps import Combine, ShardSteps
from strategies.ir.train_graph import TrainGraph
from strategies.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceResult:
    """What the steps of a reference come to.

    Attributes:
        outcome: state after the last step and the loss of every step; a random state appears as
            (variable, rank).
        initial: the values before the first step.
        results: what the last step returned beside its loss.
        with_gradient: variables that met a gradient other than zero.
    """

    outcome: Outcome
    initial: Mapping[Copy, Array]
    results: tuple[Returned, ...]
    with_gradient: frozenset[str]


def run_references(
    step: TrainGraph,
    initial: InitialValues,
    topology: Topology,
    batches: Sequence[Sequence[Array]],
    roundings: Sequence[Rounding],
    *,
    eps: float,
    combine: Combine | None = None,
) -> list[ReferenceResult]:
    """Run the reference on global batches, a step each, once for each rounding.

    Args:
        eps: of the coarsest type that forward and backward compute in.
        combine: tells of boundaries what updates take instead of exact sums.
    """
    results = []
    with ExitStack() as opened:
        reference = None
        for rounding in roundings:
            if reference is None or not reference.starts_over:
                reference = opened.enter_context(ShardSteps(step, initial, topology))
            reference.begin(rounding, eps)
            before = reference.snapshot()
            losses = tuple(reference.step(n, batch, combine) for n, batch in enumerate(batches))
            results.append(
                ReferenceResult(
                    outcome=Outcome(
                        values=reference.snapshot(), losses=losses, gradient_norms=reference.gradient_norms
                    ),
                    initial=before,
                    results=reference.results,
                    with_gradient=frozenset(reference.with_gradient),
                )
            )
    return results


def first_crossing(
    step: TrainGraph, initial: InitialValues, topology: Topology, batch: Sequence[Array]
) -> Mapping[str, Crossed]:
    """What all shards together send across each boundary in the first step.

    Returns:
        `Boundary.values` → values, and row ids if it is sparse.
    """
    with ShardSteps(step, initial, topology) as reference:
        reference.begin(PLAIN)
        return reference.crossing(batch)[1]


def first_statistics(
    step: TrainGraph, initial: InitialValues, topology: Topology, batch: Sequence[Array]
) -> Mapping[str, Array]:
    """What all shards have together of each statistic in the first step, by `Statistic.node`."""
    with ShardSteps(step, initial, topology) as reference:
        reference.begin(PLAIN)
        return reference.joint_statistics(batch)
