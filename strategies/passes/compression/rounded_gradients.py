"""Gradients as their type on the wire leaves them, before the workers' own transport takes them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.ir.train_graph import Contribution, TrainGraph
from strategies.numerics.compressed_sums import rounded_one
from strategies.numerics.compressors.cast import Cast
from strategies.numerics.compressors.table import codec_of
from strategies.passes.collectives.members import Members
from strategies.passes.compression.compressed_gradients import (
    Additions,
    compressed_boundaries,
    gradient_spec,
    state_specs,
)
from strategies.passes.compression.compressor_state import memories_of
from strategies.passes.replicate.rewire import captured_name, sync_prefix
from strategies.passes.task_plan import Between, TaskPlan
from strategies.plan.schema import Compression
from strategies.tf_bridge.snippet import trace
from strategies.topology import Topology


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundedGradients:
    """Round each gradient to its type on the wire, and keep what that loses where the next one gets it.

    The transport rounds what it sends: nothing is lost then but in sums.

    Attributes:
        compressions: variable → compressor of its gradient.
        between: whose gradients are encoded.
    """

    name: ClassVar[str] = "rounded-gradients"
    task: int
    compressions: Mapping[str, Compression]
    between: Between = "replicas"

    @classmethod
    def of(cls, plan: TaskPlan) -> "RoundedGradients | None":
        """Where the workers' own transport carries gradients in a smaller type."""
        if not plan.needs_collectives or not plan.rounded_on_wire:
            return None
        return cls(task=plan.task, compressions=plan.rounded_on_wire, between=plan.between)

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        """The step with rounded contributions."""
        gradients = compressed_boundaries(graph, self.compressions)
        members = Members.of(topology, self.between)
        chosen = [b for b in gradients if b.rank in members.ranks and b.contributions]
        memories = memories_of(graph, chosen, owners=tuple(members.ranks), shared=True)
        combined: dict[str, Contribution] = {}
        additions = Additions()
        for replica in members.local(topology, self.task):
            for b in (each for each in chosen if each.rank == replica.rank):
                codec = codec_of(self.compressions[b.variable], n_terms=len(members.ranks))
                if isinstance(codec, Cast):
                    # The transport's own rounding does the same, and nothing is too large for it.
                    continue
                states = memories[captured_name(b)].states(b, codec, replica.rank, replica.device)
                snippet = trace(rounded_one, (gradient_spec(b), *state_specs(states)), codec=codec)
                nodes, results = snippet.splice(
                    f"{sync_prefix(b)}/rounded/replica_{replica.rank}/",
                    [b.contributions[0].values, *(state.value for state in states)],
                    device=replica.device,
                )
                additions.add(nodes, states, results[1:])
                combined[b.values] = replace(b.contributions[0], values=results[0])
        return additions.into(graph, combined)
