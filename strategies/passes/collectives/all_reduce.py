"""Dense all-reduce, sparse all-gather and dense reduce-scatter by TensorFlow's collectives."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from strategies.ir.graph import DType, Node, Shape
from strategies.ir.tensor_proto import const
from strategies.ir.train_graph import Boundary, Contribution, TrainGraph
from strategies.numerics.collectives import IN_ORDER, gather_rows, keyed_all_reduce, reduce_scatter
from strategies.numerics.combine import merge_rows
from strategies.passes.collectives.buckets import (
    Collective,
    Member,
    ShardBucket,
    collectives,
    row_shape,
    shard_buckets,
    static_dims,
)
from strategies.passes.collectives.members import (
    Members,
    instance_keys,
    key_ranges,
    length_keys,
    pair_group_key,
)
from strategies.passes.replicate.rewire import contribute, pending, sync_prefix, total
from strategies.passes.task_plan import TaskPlan
from strategies.tf_bridge.snippet import TensorSpec, trace
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
        dense = [b for b in pending(graph, members.ranks) if b.indices is None]
        chosen = self._in_turn(graph, dense)
        hints = self.plan.hints
        keys = instance_keys(name for collective in chosen.values() for name in collective.key_names)
        combined: dict[str, Contribution] = {}
        added: list[Node] = []
        for replica in members.local(topology, self.plan.task):
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
        return contribute(graph, combined, added)

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
        names = {sync_prefix(b) for b in sparse}
        lengths = length_keys(f"{name}/lengths" for name in names)
        ranges = key_ranges(f"{name}/{part}" for name in names for part in ("rows", "ids"))
        devices = {replica.rank: replica.device for replica in topology.local_replicas(self.plan.task)}
        combined: dict[str, Contribution] = {}
        added: list[Node] = []
        for b in sparse:
            assert b.rank is not None
            nodes, contribution = _gather(b, lengths, ranges, devices[b.rank], members)
            combined[b.values] = contribution
            added += nodes
        return contribute(graph, combined, added)


def _gather(
    b: Boundary, lengths: Mapping[str, int], ranges: Mapping[str, int], device: str, members: Members
) -> tuple[list[Node], Contribution]:
    contribution = b.contributions[0]
    assert contribution.indices is not None
    assert b.index_dtype is not None
    name = sync_prefix(b)
    prefix = f"{name}/replica_{contribution.rank}/"
    rows, ids = contribution.values, contribution.indices
    merged: tuple[Node, ...] = ()
    if b.merged:
        specs = (TensorSpec(dtype=b.dtype, shape=row_shape(b)), TensorSpec(dtype=b.index_dtype))
        merged, (rows, ids) = trace(merge_rows, specs).splice(f"{prefix}merge/", [rows, ids], device=device)
    gather = trace(
        gather_rows,
        (TensorSpec(dtype=b.dtype, shape=row_shape(b)), TensorSpec(dtype=b.index_dtype, shape=Shape((-1,)))),
        group=members.group,
        length_key=lengths[f"{name}/lengths"],
        row_keys=ranges[f"{name}/rows"],
        id_keys=ranges[f"{name}/ids"],
    )
    gathered, (rows, ids) = gather.splice(f"{prefix}gather/", [rows, ids], device=device)
    return [*merged, *gathered], total(contribution.rank, rows, ids)


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
        members = [Member.of(sync_prefix(b), b, owners[b.variable]) for b in owned]
        buckets = shard_buckets("sync/scatter", members, self.plan.buckets)
        keys = instance_keys(name for bucket in buckets for name in bucket.key_names)
        combined: dict[str, Contribution] = {}
        added: list[Node] = []
        exchanged: list[str] = []
        for replica in topology.local_replicas(self.plan.task):
            own = {sync_prefix(b): b for b in owned if b.rank == replica.rank}
            for bucket in buckets:
                hint = self.plan.hints.get(bucket.members[0].variable, "auto")
                nodes, sums, done = _exchange(bucket, own, replica, topology, keys, hint)
                added += nodes
                combined |= sums
                exchanged.append(done)
        elsewhere = {b.values for b in owned} - set(combined)
        step_targets = (*graph.step_targets, *exchanged)
        return contribute(graph, combined, added, dropped=elsewhere, step_targets=step_targets)


def _exchange(
    bucket: ShardBucket,
    own: Mapping[str, Boundary],
    replica: Replica,
    topology: Topology,
    keys: Mapping[str, int],
    hint: str,
) -> tuple[Sequence[Node], dict[str, Contribution], str]:
    """One replica's nodes, contributions to the boundaries that it owns, and the node that waits for all."""
    rank, n = replica.rank, topology.n_replicas
    members = [own[member.name] for member in bucket.members]
    snippet = trace(
        reduce_scatter,
        tuple(TensorSpec(dtype=b.dtype, shape=b.shape) for b in members),
        owners=bucket.owners,
        rank=rank,
        order=topology.collective_order(),
        pairs=tuple((other, pair_group_key(rank, other, n)) for other in range(n) if other != rank),
        keys=tuple(keys[name] for name in bucket.key_names),
        hint=hint,
    )
    nodes, (*sums, done) = snippet.splice(
        f"{bucket.name}/replica_{rank}/", [b.contributions[0].values for b in members], device=replica.device
    )
    mine = [own[member.name].values for member in bucket.members if member.owner == rank]
    summed = {values: total(rank, ref) for values, ref in zip(mine, sums, strict=True)}
    return nodes, summed, done.removeprefix("^")
