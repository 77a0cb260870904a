"""Sums of encoded gradients by a transport of the workers' own, which works while the step goes on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from strategies.ir.train_graph import Boundary, Contribution, TrainGraph, Transfer
from strategies.numerics.compressed_sums import bare
from strategies.numerics.compressors.power import Power
from strategies.numerics.compressors.table import codec_of
from strategies.passes.collectives.members import Members
from strategies.passes.collectives.ring.transfers import Brought, ahead, all_given, take
from strategies.passes.compression.compressed_gradients import Additions, compressed_boundaries
from strategies.passes.compression.compressor_state import memories_of
from strategies.passes.compression.encoded_buckets import encoded_buckets
from strategies.passes.compression.encoded_exchange import Encoders, Exchanging, Given
from strategies.passes.compression.factors import exchange_factors
from strategies.passes.compression.payloads import exchange_payloads
from strategies.passes.replicate.rewire import sync_prefix
from strategies.passes.task_plan import Between, TaskPlan
from strategies.plan.schema import Compression
from strategies.topology import Topology


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodedTransportAllReduce:
    """Sum the gradients that have a compressor over all workers, a bucket at a time.

    What all exchanges give is handed over before the step waits for any, and then once more where something
    is to be given of what came.

    Attributes:
        buckets: names of the variables of each bucket; sums follow backward, whatever their order.
        compressions: variable → compressor of its gradient.
        between: whose gradients are encoded.
    """

    name: ClassVar[str] = "encoded-transport-all-reduce"
    task: int
    buckets: tuple[tuple[str, ...], ...]
    compressions: Mapping[str, Compression]
    between: Between = "replicas"

    @classmethod
    def of(cls, plan: TaskPlan) -> "EncodedTransportAllReduce | None":
        """Where the workers' own transport carries encoded gradients."""
        compressions = plan.compressions("own transport")
        if not plan.needs_collectives or not compressions:
            return None
        return cls(task=plan.task, buckets=plan.buckets, compressions=compressions, between=plan.between)

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        """The step with the exchanges of this task's members."""
        members = Members.of(topology, self.between)
        chosen = [b for b in compressed_boundaries(graph, self.compressions) if b.rank in members.ranks]
        if not chosen:
            return graph
        encoders = Encoders(
            topology=topology,
            task=self.task,
            members=members,
            brought=self._brought(chosen, members, topology),
            compressions=self.compressions,
            memories=memories_of(graph, chosen, owners=members.ranks, shared=True),
            additions=Additions(),
        )
        transfers: list[Transfer] = []
        totals = _carried_out(self._exchanges(chosen, encoders, graph), encoders, transfers)
        combined = {
            b.values: Contribution(
                rank=b.contributions[0].rank, values=totals[name], indices=None, weight=1.0, total=True
            )
            for (name, _), b in encoders.brought.items()
        }
        return encoders.additions.into(graph, combined, transfers=ahead(transfers, graph.transfers))

    def _brought(self, chosen: Sequence[Boundary], members: Members, topology: Topology) -> Brought:
        ranks = {replica.rank for replica in members.local(topology, self.task)}
        return {(sync_prefix(b), b.rank): b for b in chosen if b.rank is not None and b.rank in ranks}

    def _exchanges(
        self, chosen: Sequence[Boundary], encoders: Encoders, graph: TrainGraph
    ) -> Sequence[Exchanging]:
        """In the order in which backward has all of their gradients."""
        variable_of = {sync_prefix(b): b.variable for b in chosen}
        buckets = sorted(
            encoded_buckets(chosen, self.compressions, self.buckets),
            key=lambda named: graph.ready(variable_of[member] for member in named[1].members),
        )
        exchanges = []
        for name, bucket, compression in buckets:
            codec = codec_of(compression, n_terms=len(encoders.members.ranks))
            exchange = exchange_factors if isinstance(bare(codec), Power) else exchange_payloads
            exchanges.append(exchange(name, bucket.members, codec, encoders))
        return exchanges


def _carried_out(
    exchanges: Sequence[Exchanging], encoders: Encoders, transfers: list[Transfer]
) -> Mapping[str, str]:
    """Carry exchanges out side by side.

    Args:
        transfers: takes what is transferred, in its order.
    Returns:
        name of a gradient → its sum.
    """
    host = encoders.host
    running = [(exchange, next(exchange)) for exchange in exchanges]
    totals: dict[str, str] = {}
    after: tuple[str, ...] = ()
    round_number = 0
    while running:
        given = [node for _, each in running for node in each.nodes]
        handed_over = all_given(f"sync/encoded-handed-over_{round_number}/", given, host, after)
        encoders.additions.nodes += [*given, *handed_over]
        transfers += [each.transfer for _, each in running]
        previous = handed_over[-1].name
        resumed: list[tuple[Exchanging, Given]] = []
        for exchange, each in running:
            nodes, came, previous = take(each.transfer, each.comes, each.dtype, host, previous)
            encoders.additions.nodes += nodes
            try:
                resumed.append((exchange, exchange.send(came)))
            except StopIteration as end:
                totals |= end.value
        running, after, round_number = resumed, (previous,), round_number + 1
    return totals
