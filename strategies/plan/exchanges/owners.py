"""Exchanges with owners: gradients that only owners get, and values that they send to all others."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from strategies.ir.graph import element_bytes
from strategies.plan.exchanges.collectives import n_pieces_of
from strategies.plan.exchanges.flow import Carrier, Flow, Op, RunFacts, Values
from strategies.plan.links import Links, PairLinks, Vector
from strategies.plan.node_rules import owners_of
from strategies.plan.schema import PlanNode, VariableSummary
from strategies.plan.sharding import MOST_MEMBERS_OF_A_TASK, ShardedTensor, row_length, sums_wholes


@dataclass(slots=True, kw_only=True)
class _Shares:
    """Values of one bucket that go to their owners or come from them.

    Attributes:
        shares: bytes of each replica's share per step, by rank.
        tensors: variables, each with the number of times per step that it crosses.
    """

    op: Op
    values: Values
    carrier: Carrier
    dtype: str
    shares: Vector
    variables: dict[str, None] = field(default_factory=dict)
    tensors: list[tuple[ShardedTensor, int]] = field(default_factory=list)
    value_bytes: int = 0

    def add(self, node: PlanNode, n_times: int) -> None:
        tensor = _sharded(node)
        slice_bytes = n_times * node.bytes // max(sum(tensor.sizes), 1)
        np.add.at(self.shares, np.array(tensor.owners), np.array(tensor.sizes) * slice_bytes)
        self.variables[node.variable] = None
        self.tensors.append((tensor, n_times))
        self.value_bytes += node.bytes

    def flows(self, run: RunFacts) -> Iterator[Flow]:
        """Exchanges of the bucket.

        In TensorFlow's, each replica sends rows of one length to all others, and values go around a ring in
        such rows; whole gradients are summed by all where rows would send more. The workers' own ring sums
        a worker's replicas first and carries shares as long as they are.
        """
        if self.carrier == "tcp":
            starts = np.cumsum((0, *run.topology.replicas_per_task[:-1]))
            by_task = np.add.reduceat(self.shares, starts)
            # Of gradients, a worker's own share ends there; of values, the next worker's arrives last.
            links: Links = run.own_ring(by_task, stays=0 if self.op == "scatter" else 1)
            yield self._flow(self.op, links, float(self.shares.sum()), 1, run)
            return
        in_rows, wholes = self._bytes(run.topology.n_replicas)
        n, n_bytes = run.topology.n_replicas, float(self.shares.sum()) - wholes
        n_pieces = n_pieces_of(in_rows / self._n_rounds)
        if in_rows and self.op == "gather":
            yield self._flow(self.op, run.ring((n - 1) * in_rows), n_bytes, n_pieces, run)
        elif in_rows and max(run.topology.replicas_per_task) > MOST_MEMBERS_OF_A_TASK:
            yield self._flow("sum", run.sum_ring(n, n * in_rows), n * in_rows, n_pieces, run)
        elif in_rows:
            links = PairLinks(
                replicas_per_task=run.topology.replicas_per_task, shares=np.full(n, float(in_rows))
            )
            yield self._flow(self.op, links, n_bytes, n_pieces, run)
        if wholes:
            yield self._flow("sum", run.sum_ring(n, wholes), float(wholes), 1, run)

    @property
    def _n_rounds(self) -> int:
        return max(n_times for _, n_times in self.tensors)

    def _bytes(self, n: int) -> tuple[int, int]:
        """Bytes of each member's row, and of whole gradients that are summed, in all rounds together."""
        in_rows = summed = 0
        for turn in range(self._n_rounds):
            crossing = [tensor for tensor, n_times in self.tensors if n_times > turn]
            if self.op == "scatter" and sums_wholes(crossing, n):
                summed += sum(sum(t.sizes) * t.outer * t.inner for t in crossing if t.is_whole)
                crossing = [tensor for tensor in crossing if not tensor.is_whole]
            in_rows += row_length(crossing)
        return in_rows * element_bytes(self.dtype), summed * element_bytes(self.dtype)

    def _flow(self, op: Op, links: Links, n_bytes: float, n_messages: int, run: RunFacts) -> Flow:
        return Flow(
            op=op,
            values=self.values,
            variables=tuple(self.variables),
            transport=self.carrier,
            links=links,
            n_members=run.topology.n_tasks if self.carrier == "tcp" else run.topology.n_replicas,
            n_bytes=n_bytes,
            value_bytes=self.value_bytes,
            n_messages=n_messages,
            n_rounds=self._n_rounds,
        )


def _sharded(node: PlanNode) -> ShardedTensor:
    """Parts of a variable with owners."""
    owners = owners_of(node)
    if node.partition is None:
        sizes: tuple[int, ...] = (node.shape[0] if node.shape else 1,)
        return ShardedTensor(dims=node.shape, axis=0, sizes=sizes, owners=owners)
    return ShardedTensor(dims=node.shape, axis=node.partition.axis, sizes=node.partition.sizes, owners=owners)


def owner_flows(owned: Sequence[tuple[PlanNode, VariableSummary]], run: RunFacts) -> Iterator[Flow]:
    """Gradients that only owners get, and values that owners send to all others.

    Values that travel before they are read are apart from those that travel once they are new.

    Args:
        owned: nodes with owners, whose parts are all in one bucket.
    """
    buckets: dict[tuple[object, ...], _Shares] = {}

    def bucket(op: Op, values: Values, node: PlanNode) -> _Shares:
        nothing, carrier = np.zeros(run.topology.n_replicas), run.carrier(node)
        group = node.group if node.partition is None else (node.partition.groups or (None,))[0]
        shares = _Shares(op=op, values=values, carrier=carrier, dtype=node.dtype, shares=nothing)
        return buckets.setdefault((op, values, group, node.dtype, carrier), shares)

    for node, variable in owned:
        values: Values = "read values" if node.gathered else "new values"
        bucket("gather", values, node).add(node, 1 if node.gathered else variable.updates)
        if is_scattered(node):
            bucket("scatter", "gradients", node).add(node, variable.crossings)
    for shares in buckets.values():
        yield from shares.flows(run)


def is_scattered(node: PlanNode) -> bool:
    """True if only a variable's owners get the sum of its gradient."""
    return bool(owners_of(node)) and not node.sparse and not node.whole_gradient
