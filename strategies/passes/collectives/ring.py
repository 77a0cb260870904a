"""Synchronisation by the workers' own ring: vectors that a step gives to it and takes from it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import chain, product
from operator import attrgetter
from typing import ClassVar, Protocol, TypeAlias

from strategies.ir.graph import DType, Node, Shape, element_bytes, n_elements
from strategies.ir.train_graph import Boundary, Contribution, TrainGraph, Transfer
from strategies.ir.traversal import at_level
from strategies.numerics.exchange import hand_over, hand_over_rows, take_back, take_back_rows, waypoint
from strategies.passes.collectives.buckets import (
    Member,
    ShardBucket,
    collectives,
    row_shape,
    shard_buckets,
    static_dims,
)
from strategies.passes.collectives.members import Members
from strategies.passes.replicate.rewire import contribute, sync_prefix
from strategies.passes.task_plan import Between, TaskPlan
from strategies.plan.compressors import BY_NAME
from strategies.tf_bridge.attrs import dtype_number
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import Replica, Topology

Dims = tuple[int, ...]
Brought: TypeAlias = Mapping[tuple[str, int], Boundary]
"""Name, the same on all replicas, and rank → what a local replica brings."""
Crossing: TypeAlias = tuple[str, str | None]
"""Tensors that cross a boundary: values, and the ids of rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What comes of a transfer.

    Attributes:
        totals: name of a boundary → what crosses it. last: the node that waits.
    """

    nodes: tuple[Node, ...]
    totals: Mapping[str, Crossing]
    last: str


def give(
    transfer: Transfer,
    replicas: Sequence[Sequence[str]],
    shares: Sequence[Sequence[Shape]],
    dtype: DType,
    host: str,
) -> tuple[Node, ...]:
    """Nodes that give the sum of what a worker's replicas have, and do not wait.

    Args:
        replicas: tensors of each replica, share after share.
        shares: shapes of the tensors in each share.
    """
    snippet = trace(
        hand_over,
        tuple(TensorSpec(dtype=dtype, shape=shape) for _ in replicas for share in shares for shape in share),
        counts=tuple(map(len, shares)),
        n_replicas=len(replicas),
        dtype=dtype_number(dtype),
    )
    values = [value for own in replicas for value in own]
    nodes, _ = snippet.splice(f"{transfer.name}/hand-over/", values, device=host)
    return _calling(transfer.given_token, nodes)


def all_given(prefix: str, given: Iterable[Node], host: str, after: Iterable[str] = ()) -> tuple[Node, ...]:
    """A node at which everything has been given.

    Args:
        after: nodes that wait for transfers of an earlier level, so that a step waits for one at a time.
    """
    calls = [*(node.name for node in given if node.op == "PyFunc"), *after]
    nodes, _ = trace(waypoint, ()).splice(prefix, [], device=host, control=calls)
    return nodes


def ahead(own: Iterable[Transfer], others: Iterable[Transfer]) -> tuple[Transfer, ...]:
    """The transfers of a step in their order: by level, and of each level these before the others."""
    return tuple(sorted((*own, *others), key=attrgetter("level")))


def take(
    transfer: Transfer, shares: Sequence[Sequence[Dims]], dtype: DType, host: str, after: str
) -> tuple[tuple[Node, ...], tuple[str, ...], str]:
    """Nodes that wait for what comes.

    Args:
        shares: shapes of the tensors in each vector that comes. after: node to wait for before.
    Returns:
        the nodes, the tensors share after share, and the node that waits.
    """
    snippet = trace(take_back, (), shares=tuple(map(tuple, shares)), dtype=dtype_number(dtype))
    nodes, tensors = snippet.splice(f"{transfer.name}/take-back/", [], device=host, control=[after])
    nodes = _calling(transfer.taken_token, nodes)
    return nodes, tensors, next(node.name for node in nodes if node.op == "PyFunc")


def give_rows(transfer: Transfer, gradients: Sequence[Sequence[Boundary]], host: str) -> tuple[Node, ...]:
    """Nodes that give the rows of a worker's replicas and do not wait.

    Args:
        gradients: of each sparse gradient what each replica brings.
    """
    specs: list[TensorSpec] = []
    tensors: list[str] = []
    for replicas in gradients:
        for b in replicas:
            tensors.append(b.contributions[0].values)
            specs.append(TensorSpec(dtype=b.dtype, shape=row_shape(b)))
        for b in replicas:
            indices = b.contributions[0].indices
            assert indices is not None
            assert b.index_dtype is not None
            tensors.append(indices)
            specs.append(TensorSpec(dtype=b.index_dtype, shape=Shape((-1,))))
    merged = tuple(replicas[0].merged for replicas in gradients)
    snippet = trace(hand_over_rows, tuple(specs), n_replicas=len(gradients[0]), merged=merged)
    nodes, _ = snippet.splice(f"{transfer.name}/hand-over/", tensors, device=host)
    return _calling(transfer.given_token, nodes)


def take_rows(
    transfer: Transfer, gradients: Sequence[Boundary], host: str, after: str
) -> tuple[tuple[Node, ...], tuple[Crossing, ...], str]:
    """Nodes that wait for the rows of all workers.

    Args:
        gradients: what one replica brings of each. after: node to wait for before.
    Returns:
        the nodes, rows and ids of each gradient, and the node that waits.
    """
    types = []
    for b in gradients:
        assert b.index_dtype is not None
        types.append((dtype_number(b.dtype), dtype_number(b.index_dtype)))
    snippet = trace(
        take_back_rows, (), dims=tuple(static_dims(b)[1:] for b in gradients), dtypes=tuple(types)
    )
    nodes, tensors = snippet.splice(f"{transfer.name}/take-back/", [], device=host, control=[after])
    nodes = _calling(transfer.taken_token, nodes)
    pairs = tuple(zip(tensors[::2], tensors[1::2], strict=True))
    return nodes, pairs, next(node.name for node in nodes if node.op == "PyFunc")


def _calling(token: str, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """The nodes of a function whose call of Python has a token by now; it is traced once for all tokens."""
    return tuple(
        replace(node, attrs={**node.attrs, "token": token.encode()}) if node.op == "PyFunc" else node
        for node in nodes
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """A sum over all workers, of boundaries by the names that they have on all replicas.

    Attributes:
        shares: boundaries in each vector that a worker gives. kept: those whose sums come here.
    """

    transfer: Transfer
    dtype: DType
    shares: tuple[tuple[str, ...], ...]
    kept: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """All boundaries that it sums."""
        return tuple(chain(*self.shares))

    def give(self, brought: Brought, ranks: Sequence[int], host: str) -> tuple[Node, ...]:
        """Nodes that give what local replicas bring."""
        shapes = [[brought[name, ranks[0]].shape for name in share] for share in self.shares]
        values = [[brought[name, rank].contributions[0].values for name in self.names] for rank in ranks]
        return give(self.transfer, values, shapes, self.dtype, host)

    def take(self, brought: Brought, rank: int, host: str, after: str) -> Taken:
        """Nodes that wait for the sums kept here."""
        dims = [static_dims(brought[name, rank]) for name in self.kept]
        nodes, totals, last = take(self.transfer, [dims], self.dtype, host, after)
        return Taken(
            nodes=nodes, totals={n: (t, None) for n, t in zip(self.kept, totals, strict=True)}, last=last
        )


def sums_for_all(
    dense: Mapping[str, Boundary], buckets: Sequence[Sequence[str]], wires: Mapping[str, DType]
) -> Iterator[Sum]:
    """Sums that every worker gets: of the small tensors of a bucket, and of each large one.

    Args:
        dense: name, the same on all replicas → boundary of one of them.
        buckets: names of the variables of each bucket.
        wires: variable → type that its gradient has on its way, where it is not its own.
    """

    def wire_bytes(b: Boundary) -> int:
        return n_elements(static_dims(b)) * element_bytes(wires.get(b.variable, b.dtype))

    def kind(b: Boundary) -> tuple[float, DType | None]:
        return _weight(b), wires.get(b.variable)

    for factor, wire in dict.fromkeys(map(kind, dense.values())):
        alike = [b for b in dense.values() if kind(b) == (factor, wire)]
        for bucket, each in collectives(alike, buckets, wire_bytes).items():
            first = dense[each.members[0]]
            name = _weighted(bucket if wire is None else f"{bucket}/{wire}", factor)
            transfer = Transfer(name=name, level=first.level, wire=wire, factor=factor)
            yield Sum(transfer=transfer, dtype=first.dtype, shares=(each.members,), kept=each.members)


def sums_for_owners(
    dense: Mapping[str, Boundary],
    buckets: Sequence[Sequence[str]],
    owners: Mapping[str, int],
    task: int,
    topology: Topology,
) -> Iterator[Sum]:
    """Sums of which each worker gets those of variables that its replicas own, one for each bucket.

    Args:
        dense, buckets: as for all.
        owners: variable → rank of its owner.
    """
    task_of = {replica.rank: replica.task for replica in topology.replicas()}
    for factor in dict.fromkeys(map(_weight, dense.values())):
        members = [
            Member(
                name=name,
                variable=b.variable,
                dtype=b.dtype,
                dims=static_dims(b),
                owner=owners[b.variable],
                level=b.level,
            )
            for name, b in dense.items()
            if _weight(b) == factor
        ]
        for bucket in shard_buckets("sync/scatter", members, buckets):
            shares = bucket.by_task(task_of, topology.n_tasks)
            names = tuple(tuple(m.name for m in share) for share in shares)
            transfer = Transfer(
                name=_weighted(bucket.name, factor),
                kind="scatter",
                shares=tuple(sum(n_elements(m.dims) for m in share) for share in shares),
                level=bucket.level,
                factor=factor,
            )
            yield Sum(transfer=transfer, dtype=bucket.dtype, shares=names, kept=names[task])


def _weight(b: Boundary) -> float:
    """What a sum is multiplied by; all who add to it have the same."""
    return b.contributions[0].weight


def _weighted(name: str, factor: float) -> str:
    return name if factor == 1.0 else f"{name}/weighted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows of all workers, of sparse boundaries by the names that they have on all replicas."""

    transfer: Transfer
    names: tuple[str, ...]

    @property
    def kept(self) -> tuple[str, ...]:
        """All: every worker gets everything."""
        return self.names

    def give(self, brought: Brought, ranks: Sequence[int], host: str) -> tuple[Node, ...]:
        """Nodes that give what local replicas bring."""
        return give_rows(
            self.transfer, [[brought[name, rank] for rank in ranks] for name in self.names], host
        )

    def take(self, brought: Brought, rank: int, host: str, after: str) -> Taken:
        """Nodes that wait for the rows of all workers, one worker's after the other's."""
        nodes, pairs, last = take_rows(
            self.transfer, [brought[name, rank] for name in self.names], host, after
        )
        return Taken(nodes=nodes, totals=dict(zip(self.names, pairs, strict=True)), last=last)


def rows_of(sparse: Mapping[str, Boundary], buckets: Sequence[Sequence[str]]) -> Iterator[Rows]:
    """What travels together: the sparse boundaries of a bucket, of any types.

    Args:
        sparse: name, the same on all replicas → boundary of one of them.
        buckets: names of the variables of each bucket.
    """
    for level, (i, bucket) in product(sorted({b.level for b in sparse.values()}), enumerate(buckets)):
        names = tuple(
            name
            for variable in bucket
            for name, b in sparse.items()
            if b.variable == variable and b.level == level
        )
        if names:
            transfer = Transfer(name=at_level(f"sync/rows_{i}", level), kind="concatenate", level=level)
            yield Rows(transfer=transfer, names=names)


Copy: TypeAlias = tuple[str, int | None]
"""A value of a variable, by the name of its exchange, and the replica that has a copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """What one task adds to its step.

    Attributes:
        values: copy of a variable → its value, which another replica has.
        wholes: bucket → the tensors of all its members in one, joined along their first axis.
        done: nodes after which this task has given its share. last: the node that waits last.
    """

    nodes: tuple[Node, ...]
    values: Mapping[Copy, str]
    wholes: Mapping[str, str]
    done: tuple[str, ...]
    transfers: tuple[Transfer, ...]
    last: str


def transport_gather(
    buckets: Sequence[ShardBucket],
    own_values: Mapping[Copy, str],
    task: int,
    topology: Topology,
    after: Sequence[str] = (),
    contiguous: AbstractSet[str] = frozenset(),
) -> Gathered:
    """Nodes that give what this task's replicas own, and take what others have.

    All is given before the first wait, which holds a thread that updates may need.

    Args:
        buckets: of one level.
        own_values: copy of a variable → its value, of those that local replicas own.
        after: the last wait of the level before.
        contiguous: buckets whose members come as one tensor.
    """
    if not buckets:
        return Gathered(nodes=(), values={}, wholes={}, done=(), transfers=(), last="")
    host, task_of = topology.host_device(task), {r.rank: r.task for r in topology.replicas()}
    shares = {bucket.name: bucket.by_task(task_of, topology.n_tasks) for bucket in buckets}
    transfers = [
        Transfer(
            name=bucket.name,
            kind="gather",
            shares=tuple(sum(n_elements(m.dims) for m in share) for share in shares[bucket.name]),
            level=bucket.level,
            contiguous=bucket.name in contiguous,
        )
        for bucket in buckets
    ]
    given: list[Node] = []
    for bucket, transfer in zip(buckets, transfers, strict=True):
        own = shares[bucket.name][task]
        values = [own_values[m.name, m.owner] for m in own]
        given += give(transfer, [values], [[Shape(m.dims) for m in own]], bucket.dtype, host)
    handed_over = all_given(at_level("sync/values-handed-over", buckets[0].level) + "/", given, host, after)
    nodes = [*given, *handed_over]
    previous = handed_over[-1].name
    received: dict[str, str] = {}
    wholes: dict[str, str] = {}
    for bucket, transfer in zip(buckets, transfers, strict=True):
        others = [share for k, share in enumerate(shares[bucket.name]) if k != task and share]
        dims = [[_whole(bucket)]] if transfer.contiguous else [[m.dims for m in share] for share in others]
        if not dims:
            continue
        taking, tensors, previous = take(transfer, dims, bucket.dtype, host, previous)
        nodes += taking
        if transfer.contiguous:
            wholes[bucket.name] = tensors[0]
        else:
            received |= dict(zip((m.name for share in others for m in share), tensors, strict=True))
    return Gathered(
        nodes=tuple(nodes),
        values={
            (m.name, replica.rank): received.get(m.name) or own_values[m.name, m.owner]
            for replica in topology.local_replicas(task)
            for bucket in buckets
            for m in bucket.members
            if bucket.name not in wholes and m.owner != replica.rank
        },
        wholes=wholes,
        done=(handed_over[-1].name,),
        transfers=tuple(transfers),
        last=previous,
    )


def _whole(bucket: ShardBucket) -> tuple[int, ...]:
    """The shape of all members, joined along their first axis."""
    return (sum(m.dims[0] for m in bucket.members), *bucket.members[0].dims[1:])


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
