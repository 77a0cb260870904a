"""Exchanges with owners: gradients that only owners get, and values that owners send to all others."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from strategies.ir.graph import element_bytes
from strategies.plan.exchanges.collectives import n_pieces_of
from strategies.plan.exchanges.flow import Carrier, Flow, Op, RunFacts, Values
from strategies.plan.links import Links, PairLinks, Vector
from strategies.plan.node_rules import owners_of
from strategies.plan.partitions import sharded_tensor
from strategies.plan.schema import PlanNode, VariableSummary
from strategies.plan.sharding import MOST_MEMBERS_OF_A_TASK, ShardedTensor, exchange_of, row_length


@dataclass(frozen=True, slots=True)
class _Crossing:
    """A variable, or a part of it in a bucket of its own, that crosses several times per step."""

    variable: str
    tensor: ShardedTensor
    n_times: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _BucketFlow:
    """Values of one bucket that go to their owners or come from them.

    Attributes:
        n_rounds: number of times per step that all of them cross together.
    """

    op: Op
    values: Values
    carrier: Carrier
    dtype: str
    crossings: list[_Crossing] = field(default_factory=list)
    n_rounds: int = 1

    def rounds(self) -> Iterator["_BucketFlow"]:
        """The same flow for variables that cross equally often together."""
        before = 0
        for n_times in sorted({crossing.n_times for crossing in self.crossings}):
            crossings = [crossing for crossing in self.crossings if crossing.n_times >= n_times]
            yield replace(self, crossings=crossings, n_rounds=n_times - before)
            before = n_times

    def flows(self, run: RunFacts) -> Iterator[Flow]:
        """Messages in which all values cross.

        In TensorFlow's collectives, each replica sends rows of one length to all others, and values go around
        a ring in such rows; gradients are summed by all where rows would send more. The workers' own ring
        sums a worker's replicas first and carries shares as long as they are.
        """
        if self.carrier == "tcp":
            # Of gradients, a worker's own share ends there; of values, the next worker's arrives last.
            links: Links = run.own_ring(self._bytes_by_task(run), stays=0 if self.op == "scatter" else 1)
            yield self.flow(run, links)
            return
        n, tensors = run.topology.n_replicas, [crossing.tensor for crossing in self.crossings]
        in_rows: Sequence[int]
        in_rows, in_sums = exchange_of(tensors, n) if self.op == "scatter" else (range(len(tensors)), [])
        if in_rows:
            row = row_length([tensors[place] for place in in_rows], n) * element_bytes(self.dtype)
            yield self.of(in_rows).rows_flow(run, row)
        if in_sums:
            yield self.of(in_sums).sum_flow(run)

    def of(self, places: Iterable[int]) -> "_BucketFlow":
        """The flow of some of its values."""
        return replace(self, crossings=[self.crossings[place] for place in places])

    def rows_flow(self, run: RunFacts, row_bytes: int) -> Flow:
        """Flow of all values in rows of this length."""
        n, replicas_per_task = run.topology.n_replicas, run.topology.replicas_per_task
        sent_bytes, n_pieces = self.n_rounds * row_bytes, n_pieces_of(row_bytes)
        if self.op == "gather":
            return self.flow(run, run.ring((n - 1) * sent_bytes), n_messages=n_pieces)
        if max(replicas_per_task) > MOST_MEMBERS_OF_A_TASK:
            summed = replace(self, op="sum").flow(run, run.sum_ring(n, n * sent_bytes), n_messages=n_pieces)
            return replace(summed, n_bytes=float(n * sent_bytes))
        links = PairLinks(replicas_per_task=replicas_per_task, shares=np.full(n, float(sent_bytes)))
        return self.flow(run, links, n_messages=n_pieces)

    def sum_flow(self, run: RunFacts) -> Flow:
        """Flow of all values if every replica gets their sums."""
        links = run.sum_ring(run.topology.n_replicas, self.n_rounds * self._value_bytes)
        return replace(self, op="sum").flow(run, links, n_messages=n_pieces_of(self._value_bytes))

    @property
    def _value_bytes(self) -> int:
        return sum(crossing.tensor.n_elements for crossing in self.crossings) * element_bytes(self.dtype)

    def _bytes_by_task(self, run: RunFacts) -> Vector:
        n_elements = np.zeros(run.topology.n_replicas)
        for tensor in (crossing.tensor for crossing in self.crossings):
            np.add.at(n_elements, list(tensor.owners), np.array(tensor.sizes) * (tensor.outer * tensor.inner))
        starts = np.cumsum((0, *run.topology.replicas_per_task[:-1]))
        n_bytes: Vector = np.add.reduceat(n_elements, starts) * (self.n_rounds * element_bytes(self.dtype))
        return n_bytes

    def flow(self, run: RunFacts, links: Links, *, n_messages: int = 1) -> Flow:
        return Flow(
            op=self.op,
            values=self.values,
            variables=tuple(dict.fromkeys(crossing.variable for crossing in self.crossings)),
            transport=self.carrier,
            links=links,
            n_members=run.topology.n_tasks if self.carrier == "tcp" else run.topology.n_replicas,
            n_bytes=float(self.n_rounds * self._value_bytes),
            value_bytes=self._value_bytes,
            n_messages=n_messages,
            n_rounds=self.n_rounds,
        )


def owner_flows(owned: Iterable[tuple[str, PlanNode, VariableSummary]], run: RunFacts) -> Iterator[Flow]:
    """Gradients that only owners get, and values that owners send to all others.

    Values that travel before they are read are apart from those that travel once they are new.

    Args:
        owned: variables with owners: name, node, and summary. Nodes are those of parts if a plan's buckets
            divide a variable, see `joins_parts`.
    """
    buckets: dict[tuple[object, ...], _BucketFlow] = {}

    def add(op: Op, values: Values, name: str, node: PlanNode, n_times: int) -> None:
        carrier = run.carrier(node)
        group = node.group if node.partition is None else (node.partition.groups or (None,))[0]
        flow = _BucketFlow(op=op, values=values, carrier=carrier, dtype=node.dtype)
        tensor = sharded_tensor(node)
        if tensor is not None and n_times:
            crossings = buckets.setdefault((op, values, group, node.dtype, carrier), flow).crossings
            crossings.append(_Crossing(name, tensor, n_times))

    for name, node, variable in owned:
        values: Values = "read values" if node.gathered else "new values"
        add("gather", values, name, node, 1 if node.gathered else variable.updates)
        if is_scattered(node):
            add("scatter", "gradients", name, node, variable.crossings)
    for bucket in buckets.values():
        for own in bucket.rounds():
            yield from own.flows(run)


def is_scattered(node: PlanNode) -> bool:
    """True if only a variable's owners get the sum of its gradient."""
    return bool(owners_of(node)) and not node.sparse and not node.whole_gradient
