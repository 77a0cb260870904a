"""Turns of a reference step: what is fetched, run and fed once the boundaries before it are crossed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.equivalence.yardstick import Array
from harness.worker.verify.rounding import Crossed
from strategies.ir.graph import producer
from strategies.ir.random_ops import draws_from_op
from strategies.ir.replica_updates import passing, replica_targets
from strategies.ir.train_graph import Boundary, TrainGraph
from strategies.ir.traversal import ancestors, levels_of


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTurns:
    """The turn of each tensor and target, from 1: one after the boundaries that lie before it.

    Attributes:
        sources: boundary → what crosses it in a shard: tensors of values and row ids, None where it is dense.
        fetches: tensor → its turn.
        replica_targets: target that each shard runs itself → its turn.
        draws: those from states of ops. No second run repeats them, and a later turn, or an update, may bring
            about forward again: what is fed still runs for a node that waits for it.
    """

    boundaries: tuple[Boundary, ...]
    sources: Mapping[str, tuple[str, str | None]]
    fetches: Mapping[str, int]
    replica_targets: Mapping[str, int]
    draws: frozenset[str]
    n_turns: int

    @classmethod
    def of(cls, step: TrainGraph, beside: Sequence[str]) -> "StepTurns":
        """The turns of a captured step.

        Args:
            beside: tensors to fetch with all that crosses.
        """
        by_name = step.graph.by_name
        sources = {
            b.values: (
                by_name[b.values].inputs[0],
                None if b.indices is None else by_name[b.indices].inputs[0],
            )
            for b in step.boundaries
        }
        levels = levels_of(
            step.graph, {n for b in step.boundaries for n in (b.values, b.indices) if n is not None}
        )
        draws = _draws(step)
        refs = [step.losses[0].tensor, *(result.tensor for result in step.results), *beside]
        refs += [ref for source in sources.values() for ref in source if ref is not None]
        fetches = {ref: levels[producer(ref)] + 1 for ref in [*refs, *sorted(draws)]}
        targets = {target: levels[target] + 1 for target in replica_targets(step)}
        return cls(
            boundaries=step.boundaries,
            sources=sources,
            fetches=fetches,
            replica_targets=targets,
            draws=draws,
            n_turns=max(*fetches.values(), *targets.values(), 1),
        )

    def brought(self, b: Boundary, fetched: Mapping[str, Array]) -> Crossed:
        """What a shard sends across a boundary."""
        values, indices = self.sources[b.values]
        return fetched[values], None if indices is None else fetched[indices]

    def crossed(self, fetched: Mapping[str, Array]) -> dict[str, Crossed]:
        """Boundary → what a shard sends across it."""
        return {b.values: self.brought(b, fetched) for b in self.boundaries}

    def fed(self, combined: Mapping[str, Crossed]) -> dict[str, Array]:
        """Node of a boundary → what crosses it, for the boundaries that were crossed."""
        fed: dict[str, Array] = {}
        for b in self.boundaries:
            if b.values in combined:
                values, indices = combined[b.values]
                fed[b.values] = values
                if b.indices is not None and indices is not None:
                    fed[b.indices] = indices
        return fed


def _draws(step: TrainGraph) -> frozenset[str]:
    """Tensors that ops of a step draw from states of their own."""
    drawing = {n.name for n in step.graph.nodes if draws_from_op(n)}
    if not drawing:
        return frozenset()
    targets = [*step.state_targets, *(target for region in step.regions for target in region.targets)]
    needed = passing(step) | ancestors(step.graph, targets)
    return frozenset(
        ref
        for node in step.graph.nodes
        if node.name in needed
        for ref in node.data_inputs
        if producer(ref) in drawing
    )
