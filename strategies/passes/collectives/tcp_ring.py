"""Exchanges by the workers' own TCP ring, which sends vectors while the step continues.

An exchange hands vectors to the ring, takes the results, and may continue. In each round all exchanges hand
over their vectors before the step waits for any of them: a wait holds one of the threads that the backward
pass runs on, and all workers could end up waiting.
"""

from collections.abc import Container, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, product
from operator import attrgetter
from typing import ClassVar, Generic, TypeAlias, TypeVar

from strategies.ir.graph import DType, Node, Shape, element_bytes, n_elements
from strategies.ir.train_graph import Boundary, Contribution, TrainGraph, Transfer
from strategies.ir.traversal import at_level
from strategies.numerics.collectives import hand_over, hand_over_rows, take_back, take_back_rows, waypoint
from strategies.passes.collectives.buckets import (
    collectives,
    in_vectors,
    owned_gradients,
    range_blocks,
    row_shape,
    shard_buckets,
    static_dims,
)
from strategies.passes.collectives.members import Members
from strategies.passes.collectives.whole_gradients import WholeGradients
from strategies.passes.replicate.rewire import contribute, pending, sync_prefix, total
from strategies.passes.task_plan import TaskPlan
from strategies.tf_bridge.attrs import dtype_number
from strategies.tf_bridge.snippet import Snippet, TensorSpec, trace
from strategies.topology import Replica, Topology

Dims = tuple[int, ...]
Boundaries: TypeAlias = Mapping[tuple[str, int], Boundary]
"""Name, equal on all replicas, and rank → boundary of a local replica."""
Crossing: TypeAlias = tuple[str, str | None]
"""Tensors that cross a boundary: values, and the ids of rows."""
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn of an exchange.

    Attributes:
        nodes: nodes that hand tensors to the transfer without waiting.
        take: nodes that wait for the received tensors; None if this worker receives none.
    """

    transfer: Transfer
    nodes: tuple[Node, ...]
    take: Snippet | None


Exchange: TypeAlias = Generator[Turn, Sequence[str], Mapping[str, _Result]]
"""Exchange in progress: sends, receives tensors, sends again or ends with results by name."""


def give(
    transfer: Transfer,
    replicas: Sequence[Sequence[str]],
    shares: Sequence[Sequence[Shape]],
    dtype: DType,
    host: str,
    *,
    comes: Sequence[Sequence[Dims]],
) -> Turn:
    """Hand the sum over a worker's replicas to the ring.

    Args:
        replicas: tensors of each replica, share after share.
        shares: shapes of the tensors in each share.
        comes: shapes of the tensors in each received vector.
    """
    number = dtype_number(dtype)
    snippet = trace(
        hand_over,
        tuple(TensorSpec(dtype=dtype, shape=shape) for _ in replicas for share in shares for shape in share),
        counts=tuple(map(len, shares)),
        n_replicas=len(replicas),
        dtype=number,
    )
    nodes, _ = snippet.splice(f"{transfer.name}/hand-over/", [*chain(*replicas)], device=host)
    take = trace(take_back, (), shares=tuple(map(tuple, comes)), dtype=number) if comes else None
    return Turn(transfer=transfer, nodes=_calling(transfer.given_token, nodes), take=take)


def give_rows(
    transfer: Transfer,
    gradients: Sequence[Sequence[Sequence[Boundary]]],
    starts: Sequence[Sequence[int]],
    host: str,
) -> Turn:
    """Hand the rows of a worker's replicas to the ring; rows and ids of all workers are received.

    Args:
        gradients: for each sparse gradient and replica, the boundary of each range of the table.
        starts: for each sparse gradient, first row of each range.
    """
    specs: list[TensorSpec] = []
    tensors: list[str] = []
    types: list[tuple[int, int]] = []
    for replicas in gradients:
        boundaries = list(chain(*replicas))
        first = boundaries[0]
        assert first.index_dtype is not None
        specs += [TensorSpec(dtype=b.dtype, shape=row_shape(b)) for b in boundaries]
        specs += [TensorSpec(dtype=first.index_dtype, shape=Shape((-1,)))] * len(boundaries)
        tensors += [b.contributions[0].values for b in boundaries]
        tensors += [b.contributions[0].indices or "" for b in boundaries]
        types.append((dtype_number(first.dtype), dtype_number(first.index_dtype)))
    merged = tuple(replicas[0][0].merged for replicas in gradients)
    firsts = tuple(map(tuple, starts))
    snippet = trace(hand_over_rows, tuple(specs), n_replicas=len(gradients[0]), merged=merged, starts=firsts)
    nodes, _ = snippet.splice(f"{transfer.name}/hand-over/", tensors, device=host)
    dims = tuple(static_dims(replicas[0][0])[1:] for replicas in gradients)
    take = trace(take_back_rows, (), dims=dims, dtypes=tuple(types), starts=firsts)
    return Turn(transfer=transfer, nodes=_calling(transfer.given_token, nodes), take=take)


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried(Generic[_Result]):
    """Result of one task's exchanges.

    Attributes:
        results: results of all exchanges, by name.
        handed_over: node that runs once the first round is handed over.
        last: last node that waits.
    """

    transfers: tuple[Transfer, ...]
    results: Mapping[str, _Result]
    handed_over: str
    last: str


def carry_out(
    exchanges: Sequence[Exchange[_Result]],
    rounds: Iterable[str],
    host: str,
    nodes: list[Node],
    after: Iterable[str] = (),
) -> Carried[_Result]:
    """Carry out exchanges concurrently.

    Args:
        rounds: for each round, name of the node that runs once everything is handed over.
        nodes: list to which the ring's nodes are added; exchanges add their own to it.
        after: nodes that wait for earlier exchanges, so that a step waits for one at a time.
    """
    running = [(exchange, next(exchange)) for exchange in exchanges]
    transfers: list[Transfer] = []
    results: dict[str, _Result] = {}
    all_given: list[str] = []
    last, names = "", iter(rounds)
    while running:
        nodes += [node for _, turn in running for node in turn.nodes]
        calls = [node.name for _, turn in running for node in turn.nodes if node.op == "PyFunc"]
        handed_over, _ = trace(waypoint, ()).splice(
            f"{next(names)}/", [], device=host, control=[*calls, *after]
        )
        nodes += handed_over
        transfers += [turn.transfer for _, turn in running]
        last = handed_over[-1].name
        all_given.append(last)
        resumed: list[tuple[Exchange[_Result], Turn]] = []
        # One after the other, so that the first updates run while later tensors are still on the network.
        for exchange, turn in running:
            tensors: Sequence[str] = ()
            if turn.take is not None:
                taking, tensors = turn.take.splice(
                    f"{turn.transfer.name}/take-back/", [], device=host, control=[last]
                )
                taking = _calling(turn.transfer.taken_token, taking)
                nodes += taking
                last = next(node.name for node in taking if node.op == "PyFunc")
            try:
                resumed.append((exchange, exchange.send(tensors)))
            except StopIteration as end:
                results |= end.value
        running, after = resumed, (last,)
    return Carried(transfers=tuple(transfers), results=results, handed_over=all_given[0], last=last)


def ahead(own: Iterable[Transfer], others: Iterable[Transfer]) -> tuple[Transfer, ...]:
    """Transfers of a step in order: by level, and `own` before `others` within a level."""
    return tuple(sorted((*own, *others), key=attrgetter("level")))


def _calling(token: str, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Nodes with the token of their Python call: a function is traced once for all tokens."""
    return tuple(
        replace(node, attrs={**node.attrs, "token": token.encode()}) if node.op == "PyFunc" else node
        for node in nodes
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class TcpAllReduce:
    """Sum the contributions of these variables over all workers in vectors; rows are gathered.

    A worker's replicas are first summed on its host; rows of sparse gradients with equal ids are summed as
    well, and the update merges them again over workers. The ring applies weights that contributions still
    have. If a single replica gets a sum, the boundaries of all others are removed.
    """

    name: ClassVar[str] = "tcp-all-reduce"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        replicas = Members.of(topology, self.plan.between).local(topology, self.plan.task)
        devices = {replica.rank: replica.device for replica in replicas}
        crossing = self._crossing(graph, devices)
        whole_gradients = self.plan.whole_gradients
        shards = [owned for owned in self.plan.shards if owned.ranges[0] in whole_gradients]
        wholes = WholeGradients.of(shards, crossing, devices)
        boundaries = {(sync_prefix(b), b.rank): b for b in wholes.boundaries if b.rank is not None}
        sums = _Sums(plan=self.plan, topology=topology, boundaries=boundaries, replicas=replicas)
        levels = sums.by_level(graph)
        if not levels:
            return graph
        added: list[Node] = [*wholes.nodes]
        handed_over: list[str] = []
        transfers: list[Transfer] = []
        combined: dict[str, Contribution] = {}
        last: tuple[str, ...] = ()
        for level, exchanges in levels.items():
            carried = carry_out(exchanges, [at_level("sync/handed-over", level)], sums.host, added, last)
            transfers += carried.transfers
            handed_over.append(carried.handed_over)
            last = (carried.last,)
            combined |= self._contributions(carried.results, boundaries)
        split, combined = wholes.of_ranges(combined, dict.fromkeys(devices, sums.host))
        scatters = bool(self.plan.scattered_by_own_transport)
        return contribute(
            graph,
            combined,
            [*added, *split],
            dropped={b.values for b in crossing} - set(combined) if scatters else (),
            # Transfers that exist already run after updates: after all sums of their level.
            transfers=ahead(transfers, graph.transfers),
            # A worker takes part in sums even if it needs none of them.
            step_targets=(*graph.step_targets, *(handed_over if scatters else ())),
        )

    def _crossing(self, graph: TrainGraph, ranks: Container[int]) -> list[Boundary]:
        """Boundaries of these replicas that the ring sums or gathers."""
        names = self.plan.summed_on_own_transport.intersection(chain(*self.plan.buckets))
        return [b for b in pending(graph, ranks) if b.variable in names]

    def _contributions(
        self, totals: Mapping[str, Crossing], boundaries: Boundaries
    ) -> Mapping[str, Contribution]:
        owners = self.plan.scattered_by_own_transport
        contributions = {}
        for (name, rank), b in boundaries.items():
            if name in totals and (not _is_owned(b, owners) or owners[b.variable] == rank):
                values, indices = totals[name]
                contributions[b.values] = total(b.contributions[0].rank, values, indices)
        return contributions


def _is_owned(b: Boundary, owners: Mapping[str, int]) -> bool:
    """True if a single replica gets the sum; rows go to all."""
    return b.variable in owners and b.indices is None


_Planned: TypeAlias = tuple[int, tuple[str, ...], Exchange[Crossing]]
"""Level of an exchange, names of its boundaries, and the exchange."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sums:
    """Exchanges of one task, by the names of boundaries, which are equal on all replicas."""

    plan: TaskPlan
    topology: Topology
    boundaries: Boundaries
    replicas: Sequence[Replica]

    @property
    def host(self) -> str:
        return self.topology.host_device(self.plan.task)

    @property
    def ranks(self) -> list[int]:
        return [replica.rank for replica in self.replicas]

    def by_level(self, graph: TrainGraph) -> dict[int, list[Exchange[Crossing]]]:
        """Level → its exchanges, in the order in which the backward pass completes their gradients."""
        first = min((rank for _, rank in self.boundaries), default=None)
        one = {name: b for (name, rank), b in self.boundaries.items() if rank == first}
        owners = self.plan.scattered_by_own_transport
        owned = {key: b for key, b in self.boundaries.items() if _is_owned(b, owners)}
        sparse = {name: b for name, b in one.items() if b.indices is not None}
        dense = {n: b for n, b in one.items() if not _is_owned(b, owners) and b.indices is None}
        planned = (*self._for_all(dense), *self._for_owners(owned), *self._rows(sparse))
        ordered = sorted(planned, key=lambda p: (p[0], graph.ready(one[name].variable for name in p[1])))
        return {level: [p[2] for p in ordered if p[0] == level] for level in sorted({p[0] for p in ordered})}

    def _for_all(self, dense: Mapping[str, Boundary]) -> Iterator[_Planned]:
        """Sums for every worker: one of the small tensors of a bucket, and one per large tensor."""
        wires = self.plan.wire_types

        def wire_bytes(b: Boundary) -> int:
            return n_elements(static_dims(b)) * element_bytes(wires.get(b.variable, b.dtype))

        def kind(b: Boundary) -> tuple[float, DType | None]:
            return _weight(b), wires.get(b.variable)

        for factor, wire in dict.fromkeys(map(kind, dense.values())):
            alike = [b for b in dense.values() if kind(b) == (factor, wire)]
            for bucket, collective in collectives(alike, self.plan.buckets, wire_bytes).items():
                first = dense[collective.members[0]]
                name = _weighted(bucket if wire is None else f"{bucket}/{wire}", factor)
                transfer = Transfer(name=name, level=first.level, wire=wire, factor=factor)
                exchange = self._sum(transfer, first.dtype, [collective.members], collective.members)
                yield first.level, collective.members, exchange

    def _for_owners(self, owned: Boundaries) -> Iterator[_Planned]:
        """Sums that are scattered to the workers whose replicas own the variables, one per bucket."""
        task_of = {replica.rank: replica.task for replica in self.topology.replicas()}
        first = self.ranks[0]
        of_first = {b.values: name for (name, rank), b in owned.items() if rank == first}
        crossing = owned_gradients(self.plan.shards, owned.values(), first)
        ranges = {g.name: [of_first[b.values] for b in g.boundaries] for g in crossing}
        weights = {g.name: _weight(g.boundaries[0]) for g in crossing}
        for factor in dict.fromkeys(weights.values()):
            members = [g.member for g in crossing if weights[g.name] == factor]
            for bucket in shard_buckets("sync/scatter", members, self.plan.buckets):
                names = [name for m in bucket.members for name in ranges[m.name]]
                owners = [owner for m in bucket.members for owner in m.shards.range_owners]
                own = [n for n, owner in zip(names, owners, strict=True) if task_of[owner] == self.plan.task]
                blocks = list(chain(*range_blocks(bucket.members, task_of)))
                vectors = in_vectors(blocks, bucket.dtype)
                transfer = Transfer(
                    name=_weighted(bucket.name, factor),
                    kind="scatter",
                    blocks=tuple(
                        replace(blocks[k], vector=vector)
                        for vector, places in enumerate(vectors)
                        for k in places
                    ),
                    level=bucket.level,
                    factor=factor,
                )
                shares = [[names[k] for k in places] for places in vectors]
                yield bucket.level, tuple(names), self._sum(transfer, bucket.dtype, shares, own)

    def _rows(self, sparse: Mapping[str, Boundary]) -> Iterator[_Planned]:
        """Rows of all workers: the sparse boundaries of a bucket, of any types, are sent together."""
        tables = self._tables(sparse)
        levels = sorted({b.level for b in sparse.values()})
        for level, (i, bucket) in product(levels, enumerate(self.plan.buckets)):
            chosen = [
                table
                for variable in bucket
                for table in tables
                if sparse[table.names[0]].variable == variable and sparse[table.names[0]].level == level
            ]
            if chosen:
                transfer = Transfer(name=at_level(f"sync/rows_{i}", level), kind="concatenate", level=level)
                names = tuple(name for table in chosen for name in table.names)
                yield level, names, self._gathered_rows(transfer, chosen)

    def _tables(self, sparse: Mapping[str, Boundary]) -> list["_Table"]:
        """Sparse gradients, each with the boundaries of all ranges that this task has of its table."""
        name_of = {b.values: name for name, b in sparse.items()}
        owned = owned_gradients(self.plan.shards, sparse.values(), self.ranks[0])
        in_ranges = [
            _Table(
                names=tuple(name_of[b.values] for b in gradient.boundaries),
                starts=tuple(start for start, _ in gradient.shards.bounds),
            )
            for gradient in owned
        ]
        names_in_ranges = {name for table in in_ranges for name in table.names}
        return [
            *in_ranges,
            *(_Table(names=(name,), starts=(0,)) for name in sparse if name not in names_in_ranges),
        ]

    def _sum(
        self, transfer: Transfer, dtype: DType, shares: Sequence[Sequence[str]], state: Sequence[str]
    ) -> Exchange[Crossing]:
        """Sum over all workers.

        Args:
            shares: boundaries in each vector that a worker sends. state: boundaries whose sums this worker
                receives.
        """
        first = self.ranks[0]
        shapes = [[self.boundaries[name, first].shape for name in share] for share in shares]
        values = [
            [self.boundaries[name, rank].contributions[0].values for name in chain(*shares)]
            for rank in self.ranks
        ]
        comes = [[static_dims(self.boundaries[name, first]) for name in state]] if state else []
        totals = yield give(transfer, values, shapes, dtype, self.host, comes=comes)
        return {name: (summed, None) for name, summed in zip(state, totals, strict=True)}

    def _gathered_rows(self, transfer: Transfer, tables: Sequence["_Table"]) -> Exchange[Crossing]:
        gradients = [
            [[self.boundaries[name, rank] for name in table.names] for rank in self.ranks] for table in tables
        ]
        tensors = iter((yield give_rows(transfer, gradients, [table.starts for table in tables], self.host)))
        results: dict[str, Crossing] = {}
        for table in tables:
            rows, ids = (list(islice(tensors, len(table.names))) for _ in range(2))
            results |= zip(table.names, zip(rows, ids, strict=True), strict=True)
        return results


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """Boundaries of a sparse gradient by name, one for each range of its table, and the first row of each."""

    names: tuple[str, ...]
    starts: tuple[int, ...]


def _weight(b: Boundary) -> float:
    return b.contributions[0].weight


def _weighted(name: str, factor: float) -> str:
    return name if factor == 1.0 else f"{name}/weighted"
