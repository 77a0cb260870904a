"""Sums of dense contributions over all workers: for everybody, or for the owner of each variable."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from strategies.ir.graph import DType, Node, element_bytes, n_elements
from strategies.ir.train_graph import Boundary, Transfer
from strategies.passes.collectives.buckets import Member, collectives, shard_buckets, static_dims
from strategies.passes.collectives.ring.transfers import Brought, Taken, give, take
from strategies.topology import Topology


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
