"""Between-graph synchronisation by a transport of the workers' own, which sums while the step goes on."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter
from typing import ClassVar, TypeAlias

from strategies.ir.assembly.levels import at_level
from strategies.ir.boundary import Boundary, Contribution
from strategies.ir.graph import DType, Node
from strategies.ir.sizes import element_bytes, n_elements
from strategies.ir.train_graph import TrainGraph
from strategies.ir.transfer import Transfer
from strategies.passes.collectives.buckets import Member, collectives, shard_buckets, static_dims
from strategies.passes.collectives.members import Members
from strategies.passes.collectives.ring.transfers import all_given, give, take
from strategies.passes.replicate.rewire import contribute, sync_prefix
from strategies.passes.task_plan import Between, TaskPlan
from strategies.plan.compressors import BY_NAME
from strategies.topology import Replica, Topology

_Brought: TypeAlias = Mapping[tuple[str, int], Boundary]
"""Name, the same on all replicas, and rank → what a local replica brings."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TransportAllReduce:
    """Sum the dense contributions of these variables over all workers, a vector at a time.

    A worker's replicas are summed on its host first. All vectors are handed over before the step waits for
    any: a wait holds one of the threads that backward runs on, and all workers could come to wait.

    Attributes:
        buckets: names of the variables of each bucket, in the order in which backward makes them ready.
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
        carried = plan.on_own_transport.difference(plan.compressions(served=False))
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
        """The step with two ends of a sum per bucket, and one more for each large tensor."""
        members = Members.of(topology, self.between)
        replicas = members.local(topology, self.task)
        brought = self._brought(graph, replicas)
        sums = self._sums(brought, topology)
        if not sums:
            return graph
        added: list[Node] = []
        handed_over: list[str] = []
        combined: dict[str, Contribution] = {}
        last: tuple[str, ...] = ()
        for level in sorted({each.level for each in sums}):
            of_level = [each for each in sums if each.level == level]
            nodes, waits, sum_of = self._exchanged(of_level, brought, topology, last)
            added += nodes
            handed_over.append(waits[0])
            last = waits[-1:]
            combined |= self._totals(sum_of, brought)
        rewired = contribute(
            graph,
            combined,
            added,
            # What came here earlier travels once updates are made: after all sums of their level.
            transfers=tuple(
                sorted((*(each.transfer for each in sums), *graph.transfers), key=attrgetter("level"))
            ),
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
        self, sums: Sequence["_Sum"], brought: _Brought, topology: Topology, after: Sequence[str]
    ) -> tuple[list[Node], tuple[str, str], dict[str, str]]:
        """Nodes of one level's sums; when all is given, and the last wait; name → the tensor of its sum.

        Args:
            after: the last wait of the level before.
        """
        replicas = Members.of(topology, self.between).local(topology, self.task)
        host = topology.host_device(self.task)
        added: list[Node] = []
        for each in sums:
            shapes = [[brought[name, replicas[0].rank].shape for name in share] for share in each.shares]
            values = [
                [brought[name, replica.rank].contributions[0].values for name in chain(*each.shares)]
                for replica in replicas
            ]
            added += give(each.transfer, values, shapes, each.dtype, host)
        handed_over = all_given(at_level("sync/handed-over", sums[0].level) + "/", added, host, after)
        added += handed_over
        previous = handed_over[-1].name
        sum_of: dict[str, str] = {}
        # One after the other, so that updates with the first run while later ones still travel.
        for each in (each for each in sums if each.kept):
            dims = [static_dims(brought[name, replicas[0].rank]) for name in each.kept]
            nodes, totals, previous = take(each.transfer, [dims], each.dtype, host, previous)
            added += nodes
            sum_of.update(zip(each.kept, totals, strict=True))
        return added, (handed_over[-1].name, previous), sum_of

    def _brought(self, graph: TrainGraph, replicas: Sequence[Replica]) -> _Brought:
        names = set(chain(*self.buckets))
        ranks = {replica.rank for replica in replicas}
        return {
            (sync_prefix(b), b.rank): b
            for b in graph.boundaries
            if b.variable in names
            and b.rank is not None
            and b.rank in ranks
            and b.indices is None
            and b.contributions
            and not b.contributions[0].total
        }

    def _sums(self, brought: _Brought, topology: Topology) -> Sequence["_Sum"]:
        """In the order in which backward has all of their members."""
        first = min((rank for _, rank in brought), default=None)
        one = {name: b for (name, rank), b in brought.items() if rank == first}
        order = {name: i for i, name in enumerate(chain(*self.buckets))}
        sums = [*self._for_all(one), *self._for_owners(one, topology)]
        return sorted(
            sums,
            key=lambda each: (each.level, max(order[one[name].variable] for name in chain(*each.shares))),
        )

    def _for_all(self, one: Mapping[str, Boundary]) -> Iterable["_Sum"]:
        dense = [b for b in one.values() if not self._owned(b)]
        for wire in dict.fromkeys(self.wires.get(b.variable) for b in dense):
            alike = [b for b in dense if self.wires.get(b.variable) == wire]
            for name, each in collectives(alike, self.buckets, self._wire_bytes).items():
                first = one[each.members[0]]
                transfer = Transfer(
                    name=name if wire is None else f"{name}/{wire}", level=first.level, wire=wire
                )
                yield _Sum(transfer=transfer, dtype=first.dtype, shares=(each.members,), kept=each.members)

    def _wire_bytes(self, b: Boundary) -> int:
        return n_elements(static_dims(b)) * element_bytes(self.wires.get(b.variable, b.dtype))

    def _for_owners(self, one: Mapping[str, Boundary], topology: Topology) -> Iterable["_Sum"]:
        task_of = {replica.rank: replica.task for replica in topology.replicas()}
        members = [
            Member(
                name=name,
                variable=b.variable,
                dtype=b.dtype,
                dims=static_dims(b),
                owner=self.owners[b.variable],
                level=b.level,
            )
            for name, b in one.items()
            if self._owned(b)
        ]
        for bucket in shard_buckets("sync/scatter", members, self.buckets):
            shares = bucket.by_task(task_of, topology.n_tasks)
            lengths = tuple(sum(n_elements(m.dims) for m in share) for share in shares)
            names = tuple(tuple(m.name for m in share) for share in shares)
            yield _Sum(
                transfer=Transfer(name=bucket.name, kind="scatter", shares=lengths, level=bucket.level),
                dtype=bucket.dtype,
                shares=names,
                kept=names[self.task],
            )

    def _owned(self, b: Boundary) -> bool:
        return b.variable in self.owners

    def _totals(self, totals: Mapping[str, str], brought: _Brought) -> Mapping[str, Contribution]:
        return {
            b.values: Contribution(
                rank=b.contributions[0].rank, values=totals[name], indices=None, weight=1.0, total=True
            )
            for (name, rank), b in brought.items()
            if name in totals and (not self._owned(b) or self.owners[b.variable] == rank)
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sum:
    """A sum over all workers, of boundaries by the names that they have on all replicas.

    Attributes:
        shares: boundaries in each vector that a worker gives. kept: those whose sums come here.
    """

    transfer: Transfer
    dtype: DType
    shares: tuple[tuple[str, ...], ...]
    kept: tuple[str, ...]

    @property
    def level(self) -> int:
        """Of the boundaries that it sums."""
        return self.transfer.level
