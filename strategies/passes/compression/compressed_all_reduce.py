"""Compressed all-reduce: sums of encoded gradients over replicas or tasks, a bucket at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from strategies.ir.train_graph import Boundary, Contribution, TrainGraph
from strategies.numerics.compressed_sums import compressed_sum, n_keys
from strategies.numerics.compressors.codec import Codec
from strategies.numerics.compressors.table import codec_of
from strategies.passes.collectives.buckets import Collective, static_dims
from strategies.passes.collectives.keys import compressed_keys
from strategies.passes.collectives.members import Members
from strategies.passes.compression.compressed_gradients import (
    Additions,
    compressed_boundaries,
    gradient_spec,
    state_specs,
)
from strategies.passes.compression.compressor_state import Memory, memories_of
from strategies.passes.compression.encoded_buckets import encoded_buckets
from strategies.passes.replicate.rewire import captured_name, sync_prefix
from strategies.passes.task_plan import Between, TaskPlan
from strategies.plan.schema import Compression
from strategies.tf_bridge.snippet import trace
from strategies.topology import Replica, Topology


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressedAllReduce:
    """Sum the gradients that have a compressor over all members, a bucket at a time.

    Attributes:
        buckets: names of the variables of each bucket, in the order in which backward makes them ready.
        compressions: variable → compressor of its gradient.
        between: whose gradients are encoded and summed.
    """

    name: ClassVar[str] = "compressed-all-reduce"
    task: int
    buckets: tuple[tuple[str, ...], ...]
    compressions: Mapping[str, Compression]
    between: Between = "replicas"

    @classmethod
    def of(cls, plan: TaskPlan) -> "CompressedAllReduce | None":
        """Where collectives carry compressed gradients."""
        compressions = plan.compressions("collectives")
        if not plan.needs_collectives or not compressions:
            return None
        return cls(task=plan.task, buckets=plan.buckets, compressions=compressions, between=plan.between)

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        """The step with one exchange per bucket and compressor on each local member."""
        gradients = compressed_boundaries(graph, self.compressions)
        if not gradients:
            return graph
        members = Members.of(topology, self.between)
        chosen = [b for b in gradients if b.rank in members.ranks]
        exchanges = self._exchanges(chosen, len(members.ranks))
        memories = memories_of(graph, chosen, owners=tuple(members.ranks), shared=True)
        keys = compressed_keys(key for each in exchanges for key in each.key_names)
        combined: dict[str, Contribution] = {}
        additions = Additions()
        for replica in members.local(topology, self.task):
            own = {sync_prefix(b): b for b in chosen if b.rank == replica.rank}
            for exchange in exchanges:
                added, summed = exchange.splice(
                    [own[m] for m in exchange.members],
                    memories,
                    replica,
                    group=members.group,
                    keys=tuple(keys[k] for k in exchange.key_names),
                )
                additions.extend(added)
                combined |= summed
        return additions.into(graph, combined)

    def _exchanges(self, chosen: Sequence[Boundary], n_members: int) -> list["_Exchange"]:
        return [
            _Exchange.of(name, bucket, codec_of(compression, n_terms=n_members))
            for name, bucket, compression in encoded_buckets(chosen, self.compressions, self.buckets)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Exchange:
    """A bucket of gradients of one type and compressor, and a name for the key of each of its collectives."""

    name: str
    members: tuple[str, ...]
    codec: Codec
    key_names: tuple[str, ...]

    @classmethod
    def of(cls, name: str, collective: Collective, codec: Codec) -> "_Exchange":
        count = n_keys(codec, len(collective.key_names))
        return cls(
            name=name,
            members=collective.members,
            codec=codec,
            key_names=tuple(f"{name}/compressed_{k}" for k in range(count)),
        )

    def splice(
        self,
        members: Sequence[Boundary],
        memories: Mapping[str, Memory],
        replica: Replica,
        *,
        group: tuple[int, int],
        keys: tuple[int, ...],
    ) -> tuple["Additions", dict[str, Contribution]]:
        """One replica's part in it: what it adds to the graph, and what then flows into its boundaries."""
        kept = [
            memories[captured_name(b)].states(b, self.codec, replica.rank, replica.device) for b in members
        ]
        flat = [state for states in kept for state in states]
        snippet = trace(
            compressed_sum,
            (*map(gradient_spec, members), *state_specs(flat)),
            shapes=tuple(map(static_dims, members)),
            codec=self.codec,
            group=group,
            keys=keys,
        )
        nodes, results = snippet.splice(
            f"{self.name}/compressed/replica_{replica.rank}/",
            [*(b.contributions[0].values for b in members), *(state.value for state in flat)],
            device=replica.device,
        )
        additions = Additions()
        additions.add(nodes, flat, results[len(members) :])
        return additions, {
            b.values: Contribution(rank=replica.rank, values=values, indices=None, weight=1.0, total=True)
            for b, values in zip(members, results, strict=False)
        }
