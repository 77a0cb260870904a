"""Exchanges with owners: gradients that only owners get, and values that they send to all others."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from strategies.plan.exchanges.collectives import is_scattered, n_pieces_of
from strategies.plan.exchanges.flow import Carrier, Flow, Op, Parts, RunFacts, Values
from strategies.plan.links import Links, PairLinks, Vector
from strategies.plan.partitions import AlikeParts
from strategies.plan.schema import PlanNode


@dataclass(slots=True, kw_only=True)
class _Shares:
    """Values of one bucket that go to their owners or come from them.

    Attributes:
        shares: bytes of each replica's share per step, by rank.
    """

    op: Op
    values: Values
    carrier: Carrier
    shares: Vector
    variables: dict[str, None] = field(default_factory=dict)
    value_bytes: int = 0
    n_rounds: int = 1

    def add(self, parts: AlikeParts, n_times: int) -> None:
        np.add.at(self.shares, np.array(parts.owners), parts.node.bytes * n_times)
        self.variables[parts.name] = None
        self.value_bytes += parts.n * parts.node.bytes
        self.n_rounds = max(self.n_rounds, n_times)

    def flow(self, run: RunFacts) -> Flow:
        """Exchange of the bucket.

        In TensorFlow's, two replicas exchange gradients in the length of the larger of their shares, and
        values go around a ring in the length of the largest. The workers' own ring sums a worker's replicas
        first and carries shares as long as they are.
        """
        counts, longest = run.topology.replicas_per_task, float(self.shares.max())
        links: Links
        if self.carrier == "tcp":
            by_task = np.add.reduceat(self.shares, np.cumsum((0, *counts[:-1])))
            # Of gradients, a worker's own share ends there; of values, the next worker's arrives last.
            links = run.own_ring(by_task, stays=0 if self.op == "scatter" else 1)
        elif self.op == "scatter":
            links = PairLinks(replicas_per_task=counts, shares=self.shares)
        else:
            links = run.ring((run.topology.n_replicas - 1) * longest)
        return Flow(
            op=self.op,
            values=self.values,
            variables=tuple(self.variables),
            transport=self.carrier,
            links=links,
            n_members=run.topology.n_tasks if self.carrier == "tcp" else run.topology.n_replicas,
            n_bytes=float(self.shares.sum()),
            value_bytes=self.value_bytes,
            n_messages=1 if self.carrier == "tcp" else n_pieces_of(longest / self.n_rounds),
            n_rounds=self.n_rounds,
        )


def owner_flows(reduced: Parts, run: RunFacts) -> Iterator[Flow]:
    """Gradients that only owners get, and values that owners send to all others, one flow per bucket.

    Values that travel before they are read are apart from those that travel once they are new.
    """
    buckets: dict[tuple[object, ...], _Shares] = {}

    def bucket(op: Op, values: Values, node: PlanNode) -> _Shares:
        nothing = np.zeros(run.topology.n_replicas)
        shares = _Shares(op=op, values=values, carrier=run.carrier(node), shares=nothing)
        return buckets.setdefault((op, values, node.group, node.dtype, shares.carrier), shares)

    for parts, variable in reduced:
        if parts.owners:
            node = parts.node
            values: Values = "read values" if node.gathered else "new values"
            bucket("gather", values, node).add(parts, 1 if node.gathered else variable.updates)
            if is_scattered(parts):
                bucket("scatter", "gradients", node).add(parts, variable.crossings)
    yield from (shares.flow(run) for shares in buckets.values())
