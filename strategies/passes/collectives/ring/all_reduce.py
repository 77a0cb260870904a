"""Between-graph synchronisation by a transport of the workers' own, which works while the step goes on."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import ClassVar, Protocol

from strategies.ir.graph import DType, Node
from strategies.ir.train_graph import Boundary, Contribution, TrainGraph, Transfer
from strategies.ir.traversal import at_level
from strategies.passes.collectives.members import Members
from strategies.passes.collectives.ring.rows import rows_of
from strategies.passes.collectives.ring.sums import sums_for_all, sums_for_owners
from strategies.passes.collectives.ring.transfers import Brought, Crossing, Taken, ahead, all_given
from strategies.passes.replicate.rewire import contribute, sync_prefix
from strategies.passes.task_plan import Between, TaskPlan
from strategies.plan.compressors import BY_NAME
from strategies.topology import Replica, Topology


class _Exchanged(Protocol):
    """What all workers do together with some boundaries, by the names that these have on all replicas."""

    @property
    def transfer(self) -> Transfer:
        """By which it is done."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of all boundaries that it needs."""

    @property
    def kept(self) -> tuple[str, ...]:
        """Of those that something comes of to this worker."""

    def give(self, brought: Brought, ranks: Sequence[int], host: str) -> tuple[Node, ...]:
        """Nodes that give what local replicas bring, and do not wait."""

    def take(self, brought: Brought, rank: int, host: str, after: str) -> Taken:
        """Nodes that wait for what comes, once `after` has run; all replicas bring what one does in kind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TransportAllReduce:
    """Sum the contributions of these variables over all workers, a vector at a time; of rows, take all.

    A worker's replicas are summed on its host first, of sparse gradients the rows of equal ids, which the
    update merges once more over workers. The transport applies a weight that contributions still have. All
    vectors are handed over before the step waits for any: a wait holds one of the threads that backward runs
    on, and all workers could come to wait.

    Attributes:
        buckets: names of the variables of each bucket; sums follow backward, whatever their order.
        between: whose contributions are summed.
        owners: variable → rank of the replica that alone gets the sum; other boundaries are gone afterwards.
        wires: variable → type that its gradient has on its way, where it is not its own.
    """

    name: ClassVar[str] = "transport-all-reduce"
    task: int
    buckets: tuple[tuple[str, ...], ...]
    between: Between = "replicas"
    owners: Mapping[str, int] = field(default_factory=dict)
    wires: Mapping[str, DType] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: TaskPlan) -> "TransportAllReduce | None":
        """Where gradients travel by the workers' own transport."""
        carried = plan.summed_on_own_transport
        if not plan.needs_collectives or not carried:
            return None
        return cls(
            task=plan.task,
            buckets=tuple(tuple(name for name in bucket if name in carried) for bucket in plan.buckets),
            between=plan.between,
            owners={name: owner for name, owner in plan.scattered_owners.items() if name in carried},
            wires={
                name: DType(BY_NAME[compression.name].codec)
                for name, compression in plan.rounded_on_wire.items()
            },
        )

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        """The step with two ends of what travels: a sum per bucket, one per large tensor, rows per bucket."""
        members = Members.of(topology, self.between)
        replicas = members.local(topology, self.task)
        brought = self._brought(graph, replicas)
        exchanges = self._exchanges(brought, graph, topology)
        if not exchanges:
            return graph
        added: list[Node] = []
        handed_over: list[str] = []
        combined: dict[str, Contribution] = {}
        last: tuple[str, ...] = ()
        for level in sorted({each.transfer.level for each in exchanges}):
            of_level = [each for each in exchanges if each.transfer.level == level]
            nodes, waits, totals = self._exchanged(of_level, brought, topology, last)
            added += nodes
            handed_over.append(waits[0])
            last = waits[-1:]
            combined |= self._contributions(totals, brought)
        rewired = contribute(
            graph,
            combined,
            added,
            # What came here earlier travels once updates are made: after all sums of their level.
            transfers=ahead((each.transfer for each in exchanges), graph.transfers),
        )
        if not self.owners:
            return rewired
        elsewhere = {b.values for b in brought.values()} - set(combined)
        return replace(
            rewired,
            boundaries=tuple(b for b in rewired.boundaries if b.values not in elsewhere),
            # A worker takes part in sums of which it needs nothing itself.
            step_targets=(*rewired.step_targets, *handed_over),
        )

    def _exchanged(
        self, exchanges: Sequence[_Exchanged], brought: Brought, topology: Topology, after: Sequence[str]
    ) -> tuple[list[Node], tuple[str, str], dict[str, Crossing]]:
        """Nodes of one level; when all is given, and the last wait; name → what crosses the boundary.

        Args:
            after: the last wait of the level before.
        """
        ranks = [replica.rank for replica in Members.of(topology, self.between).local(topology, self.task)]
        host = topology.host_device(self.task)
        added = [node for each in exchanges for node in each.give(brought, ranks, host)]
        level = exchanges[0].transfer.level
        handed_over = all_given(at_level("sync/handed-over", level) + "/", added, host, after)
        added += handed_over
        previous = handed_over[-1].name
        totals: dict[str, Crossing] = {}
        # One after the other, so that updates with the first run while later ones still travel.
        for each in (each for each in exchanges if each.kept):
            taken = each.take(brought, ranks[0], host, previous)
            added += taken.nodes
            totals |= taken.totals
            previous = taken.last
        return added, (handed_over[-1].name, previous), totals

    def _brought(self, graph: TrainGraph, replicas: Sequence[Replica]) -> Brought:
        names = set(chain(*self.buckets))
        ranks = {replica.rank for replica in replicas}
        return {
            (sync_prefix(b), b.rank): b
            for b in graph.boundaries
            if b.variable in names
            and b.rank is not None
            and b.rank in ranks
            and b.contributions
            and not b.contributions[0].total
        }

    def _exchanges(self, brought: Brought, graph: TrainGraph, topology: Topology) -> Sequence[_Exchanged]:
        """In the order in which backward has all of their boundaries."""
        first = min((rank for _, rank in brought), default=None)
        one = {name: b for (name, rank), b in brought.items() if rank == first}
        owned = {name: b for name, b in one.items() if self._owned(b)}
        sparse = {name: b for name, b in one.items() if b.indices is not None}
        dense = {name: b for name, b in one.items() if name not in owned and name not in sparse}
        exchanges: Iterable[_Exchanged] = (
            *sums_for_all(dense, self.buckets, self.wires),
            *sums_for_owners(owned, self.buckets, self.owners, self.task, topology),
            *rows_of(sparse, self.buckets),
        )
        return sorted(
            exchanges,
            key=lambda each: (each.transfer.level, graph.ready(one[name].variable for name in each.names)),
        )

    def _owned(self, b: Boundary) -> bool:
        """Whether one replica alone gets the sum; rows go to all."""
        return b.variable in self.owners and b.indices is None

    def _contributions(self, totals: Mapping[str, Crossing], brought: Brought) -> Mapping[str, Contribution]:
        contributions = {}
        for (name, rank), b in brought.items():
            if name in totals and (not self._owned(b) or self.owners[b.variable] == rank):
                values, indices = totals[name]
                contributions[b.values] = Contribution(
                    rank=b.contributions[0].rank, values=values, indices=indices, weight=1.0, total=True
                )
        return contributions
