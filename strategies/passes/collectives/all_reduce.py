"""Dense all-reduce, sparse all-gather and dense reduce-scatter by TensorFlow's collectives."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

from strategies.ir.graph import DType, Node, Shape
from strategies.ir.tensor_proto import const
from strategies.ir.train_graph import Boundary, Contribution, TrainGraph
from strategies.numerics.collectives import IN_ORDER, gather_rows, keyed_all_reduce
from strategies.numerics.combine import merge_rows
from strategies.numerics.parts import join_rows, split_rows
from strategies.numerics.shards import reduce_scatter
from strategies.passes.collectives.buckets import (
    Collective,
    OwnedGradient,
    ShardBucket,
    collectives,
    owned_gradients,
    row_shape,
    shard_buckets,
    static_dims,
)
from strategies.passes.collectives.members import (
    SCATTER_KEY,
    Members,
    instance_keys,
    key_ranges,
    length_keys,
)
from strategies.passes.collectives.whole_gradients import WholeGradients
from strategies.passes.replicate.rewire import contribute, pending, sync_prefix, total
from strategies.passes.task_plan import TaskPlan
from strategies.plan.sharding import exchange_of, row_length
from strategies.tf_bridge.snippet import Snippet, TensorSpec, trace
from strategies.topology import Replica, Topology

_KEY = DType("int32")
_COLLECTIVE = "CollectiveReduceV2"


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseAllReduce:
    """Sum dense contributions over all members, a bucket at a time; complete sums stay unchanged."""

    name: ClassVar[str] = "dense-all-reduce"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        members = Members.of(topology, self.plan.between)
        replicas = members.local(topology, self.plan.task)
        devices = {replica.rank: replica.device for replica in replicas}
        crossing = [b for b in pending(graph, members.ranks) if b.indices is None]
        wholes = WholeGradients.of(self.plan.shards, crossing, devices)
        dense = wholes.boundaries
        chosen = self._in_turn(graph, dense)
        hints = self.plan.hints
        keys = instance_keys(name for collective in chosen.values() for name in collective.key_names)
        combined: dict[str, Contribution] = {}
        added: list[Node] = [*wholes.nodes]
        for replica in replicas:
            own = {sync_prefix(b): b for b in dense if b.rank == replica.rank}
            before: tuple[str, ...] = ()
            for name, collective in chosen.items():
                summed = [own[m] for m in collective.members]
                prefix = f"{name}/replica_{replica.rank}/"
                hint = hints.get(summed[0].variable, "auto")
                own_keys = [
                    const(f"{prefix}key_{k}", _KEY, keys[key], device=replica.device)
                    for k, key in enumerate(collective.key_names)
                ]
                snippet = trace(
                    keyed_all_reduce,
                    (
                        *(TensorSpec(dtype=b.dtype, shape=b.shape) for b in summed),
                        *(TensorSpec(dtype=_KEY, shape=Shape(())) for _ in own_keys),
                    ),
                    shapes=tuple(static_dims(b) for b in summed),
                    group=members.group,
                    hint=hint,
                )
                values_of_replica = [b.contributions[0].values for b in summed]
                nodes, sums = snippet.splice(
                    prefix,
                    [*values_of_replica, *(key.name for key in own_keys)],
                    device=replica.device,
                    control=before if hint == IN_ORDER else (),
                )
                if hint == IN_ORDER:
                    before = tuple(node.name for node in nodes if node.op == _COLLECTIVE)
                added += own_keys
                added += nodes
                for b, values in zip(summed, sums, strict=True):
                    combined[b.values] = total(replica.rank, values)
        split, combined = wholes.of_ranges(combined, devices)
        return contribute(graph, combined, [*added, *split])

    def _in_turn(self, graph: TrainGraph, dense: Sequence[Boundary]) -> dict[str, Collective]:
        """Collectives of all buckets by name, in the order in which backward produces their gradients."""
        boundary = {sync_prefix(b): b for b in dense}
        buckets = (*self.plan.buckets, *((variable,) for variable in self.plan.in_no_bucket))

        def turn(named: tuple[str, Collective]) -> tuple[int, int]:
            members = [boundary[name] for name in named[1].members]
            return members[0].level, graph.ready(b.variable for b in members)

        return dict(sorted(collectives(dense, buckets, hints=self.plan.hints).items(), key=turn))


@dataclass(frozen=True, kw_only=True, slots=True)
class SparseAllGather:
    """Give every member all members' rows of each sparse gradient, in the order of their ranks.

    Variables that replicas share are handled by their servers, as in `DenseAllReduce`.
    """

    name: ClassVar[str] = "sparse-all-gather"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        members = Members.of(topology, self.plan.between)
        sparse = [
            b
            for b in pending(graph, members.ranks)
            if b.indices is not None and b.variable not in self.plan.on_own_transport
        ]
        devices = {replica.rank: replica.device for replica in topology.local_replicas(self.plan.task)}
        owned = [g for rank in devices for g in owned_gradients(self.plan.shards, sparse, rank)]
        # Tasks have parts of others as fewer ranges, but all tasks need the same names.
        in_ranges = [gradient for gradient in owned if len(gradient.shards.tensor.sizes) > 1]
        in_range_values = {b.values for gradient in in_ranges for b in gradient.boundaries}
        rows = [
            *(_Rows.of(b) for b in sparse if b.values not in in_range_values),
            *(_Rows.in_ranges(gradient) for gradient in in_ranges),
        ]
        lengths = length_keys(f"{own.name}/lengths" for own in rows)
        ranges = key_ranges(f"{own.name}/{part}" for own in rows for part in ("rows", "ids"))
        combined: dict[str, Contribution] = {}
        added: list[Node] = []
        for own in rows:
            nodes, results = own.gathered(lengths, ranges, devices[own.rank], members)
            combined |= results
            added += nodes
        return contribute(graph, combined, added)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Rows that one replica gathers, of one sparse gradient.

    Attributes:
        name: the same on all replicas.
        boundaries: a boundary for each range of the table. starts: first row of each range.
    """

    name: str
    boundaries: tuple[Boundary, ...]
    starts: tuple[int, ...] = (0,)

    @classmethod
    def of(cls, b: Boundary) -> "_Rows":
        return cls(name=sync_prefix(b), boundaries=(b,))

    @classmethod
    def in_ranges(cls, gradient: OwnedGradient) -> "_Rows":
        starts = tuple(start for start, _ in gradient.shards.bounds)
        return cls(name=f"sync/{gradient.name}", boundaries=gradient.boundaries, starts=starts)

    @property
    def rank(self) -> int:
        rank = self.boundaries[0].rank
        assert rank is not None
        return rank

    def gathered(
        self, lengths: Mapping[str, int], ranges: Mapping[str, int], device: str, members: Members
    ) -> tuple[list[Node], dict[str, Contribution]]:
        """Nodes, and the contribution of all members to each boundary."""
        b, n = self.boundaries[0], len(self.boundaries)
        assert b.index_dtype is not None
        prefix = f"{self.name}/replica_{b.contributions[0].rank}/"
        crossing = [own.contributions[0] for own in self.boundaries]
        rows, ids = crossing[0].values, crossing[0].indices or ""
        nodes: list[Node] = []
        row_spec = TensorSpec(dtype=b.dtype, shape=row_shape(b))
        id_spec = TensorSpec(dtype=b.index_dtype, shape=Shape((-1,)))

        def then(name: str, snippet: Snippet, *inputs: str) -> tuple[str, ...]:
            added, results = snippet.splice(f"{prefix}{name}/", inputs, device=device)
            nodes.extend(added)
            return results

        if n > 1:
            parts = [c.values for c in crossing] + [c.indices or "" for c in crossing]
            joining = trace(join_rows, (row_spec,) * n + (id_spec,) * n, starts=self.starts)
            rows, ids = then("join", joining, *parts)
        if b.merged:
            specs = (TensorSpec(dtype=b.dtype, shape=row_shape(b)), TensorSpec(dtype=b.index_dtype))
            rows, ids = then("merge", trace(merge_rows, specs), rows, ids)
        gather = trace(
            gather_rows,
            (row_spec, id_spec),
            group=members.group,
            length_key=lengths[f"{self.name}/lengths"],
            row_keys=ranges[f"{self.name}/rows"],
            id_keys=ranges[f"{self.name}/ids"],
            order=members.order,
        )
        received = then("gather", gather, rows, ids)
        if n > 1:
            received = then("split", trace(split_rows, (row_spec, id_spec), starts=self.starts), *received)
        return nodes, {
            own.values: total(c.rank, received[k], received[n + k])
            for k, (own, c) in enumerate(zip(self.boundaries, crossing, strict=True))
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseReduceScatter:
    """Reduce-scatter dense gradients in buckets: only the replica that owns a variable gets its sum.

    The other replicas' boundaries are removed.
    """

    name: ClassVar[str] = "dense-reduce-scatter"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        owners = self.plan.scattered_by_collectives
        owned = [b for b in graph.gradients() if b.indices is None and b.variable in owners]
        if not owned:
            return graph
        Members.of(topology, "replicas")  # refuses a group of one
        replicas = topology.local_replicas(self.plan.task)
        crossing = {r.rank: owned_gradients(self.plan.shards, owned, r.rank) for r in replicas}
        members = [gradient.member for gradient in crossing[replicas[0].rank]]
        buckets = shard_buckets("sync/scatter", members, self.plan.buckets)
        names = {bucket.name: _key_names(bucket, topology.n_replicas) for bucket in buckets}
        keys = instance_keys(chain(*chain(*names.values())))
        combined: dict[str, Contribution] = {}
        added: list[Node] = []
        exchanged: list[str] = []
        for replica in replicas:
            ranges = {gradient.name: gradient.boundaries for gradient in crossing[replica.rank]}
            for bucket in buckets:
                hint = self.plan.hints.get(bucket.members[0].shards.ranges[0], "auto")
                row_keys, sum_keys = (tuple(keys[name] for name in own) for own in names[bucket.name])
                nodes, sums, done = _exchange(bucket, ranges, replica, topology, row_keys, sum_keys, hint)
                added += nodes
                combined |= sums
                exchanged.append(done)
        elsewhere = {b.values for b in owned} - set(combined)
        step_targets = (*graph.step_targets, *exchanged)
        return contribute(graph, combined, added, dropped=elsewhere, step_targets=step_targets)


def _exchange(
    bucket: ShardBucket,
    ranges: Mapping[str, Sequence[Boundary]],
    replica: Replica,
    topology: Topology,
    row_keys: tuple[int, ...],
    sum_keys: tuple[int, ...],
    hint: str,
) -> tuple[Sequence[Node], dict[str, Contribution], str]:
    """One replica's nodes, contributions to the boundaries that it owns, and the node that waits for all.

    Args:
        ranges: member → the replica's boundaries.
    """
    rank = replica.rank
    crossing = [ranges[member.name] for member in bucket.members]
    sent = list(chain(*crossing))
    snippet = trace(
        reduce_scatter,
        tuple(TensorSpec(dtype=b.dtype, shape=b.shape) for b in sent),
        tensors=bucket.tensors,
        counts=tuple(map(len, crossing)),
        rank=rank,
        order=topology.collective_order(),
        group_key=SCATTER_KEY,
        row_keys=row_keys,
        sum_keys=sum_keys,
        hint=hint,
        most_local=max(topology.replicas_per_task),
    )
    nodes, (*sums, done) = snippet.splice(
        f"{bucket.name}/replica_{rank}/", [b.contributions[0].values for b in sent], device=replica.device
    )
    own = chain(
        *(
            member.shards.of(rank, boundaries)
            for member, boundaries in zip(bucket.members, crossing, strict=True)
        )
    )
    summed = {b.values: total(rank, ref) for b, ref in zip(own, sums, strict=True)}
    return nodes, summed, done.removeprefix("^")


def _key_names(bucket: ShardBucket, n: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the keys of n members' rows, and of the tensors that they sum."""
    in_rows, in_sums = exchange_of(bucket.tensors, n)
    row = row_length([bucket.tensors[place] for place in in_rows], n)
    n_summed = sum(bucket.tensors[place].n_elements for place in in_sums)
    return bucket.key_names("piece", row), bucket.key_names("sum", n_summed)
