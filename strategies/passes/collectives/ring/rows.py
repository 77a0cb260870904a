"""Rows of sparse gradients: every worker gets those of all, whose number only the step tells."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from strategies.ir.graph import Node
from strategies.ir.train_graph import Boundary, Transfer
from strategies.ir.traversal import at_level
from strategies.passes.collectives.ring.transfers import Brought, Taken, give_rows, take_rows


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
