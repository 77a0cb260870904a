"""Between-graph synchronisation where one replica updates a variable: it alone gets the gradient's sum."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from strategies.ir.graph import Node
from strategies.ir.train_graph import Boundary, Contribution, TrainGraph
from strategies.numerics.shards import reduce_scatter
from strategies.passes.collectives.buckets import Member, ShardBucket, shard_buckets, static_dims
from strategies.passes.collectives.keys import instance_keys, pair_group_key
from strategies.passes.collectives.members import Members
from strategies.passes.replicate.rewire import contribute, sync_prefix
from strategies.passes.task_plan import TaskPlan
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import Replica, Topology


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseReduceScatter:
    """Sum dense gradients over all replicas, each for the replica that owns the variable, a bucket at a time.

    The others pass nothing on: their boundaries are gone afterwards.

    Attributes:
        buckets: names of the variables of each bucket, in the order in which backward makes them ready.
        owners: variable → rank of the replica that gets the sum of its gradient.
        hints: variable → TensorFlow's implementation for its bucket, `auto` unless given.
    """

    name: ClassVar[str] = "dense-reduce-scatter"
    task: int
    buckets: tuple[tuple[str, ...], ...]
    owners: Mapping[str, int]
    hints: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: TaskPlan) -> "DenseReduceScatter | None":
        """Where owners alone get sums, through collectives."""
        owners = {
            name: owner for name, owner in plan.scattered_owners.items() if name not in plan.on_own_transport
        }
        if not owners:
            return None
        return cls(task=plan.task, buckets=plan.buckets, owners=owners, hints=plan.hints)

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        """The step with one exchange per bucket and pair of replicas."""
        owned = [b for b in graph.gradients() if b.indices is None and b.variable in self.owners]
        if not owned:
            return graph
        Members.of(topology, "replicas")  # refuses a group of one
        buckets = shard_buckets("sync/scatter", map(self._member, owned), self.buckets)
        keys = instance_keys(name for bucket in buckets for name in bucket.key_names)
        combined: dict[str, Contribution] = {}
        added: list[Node] = []
        exchanged: list[str] = []
        for replica in topology.local_replicas(self.task):
            own = {sync_prefix(b): b for b in owned if b.rank == replica.rank}
            for bucket in buckets:
                hint = self.hints.get(bucket.members[0].variable, "auto")
                nodes, sums, done = _exchange(bucket, own, replica, topology, keys, hint)
                added += nodes
                combined |= sums
                exchanged.append(done)
        rewired = contribute(graph, combined, added)
        elsewhere = {b.values for b in owned} - set(combined)
        return replace(
            rewired,
            boundaries=tuple(b for b in rewired.boundaries if b.values not in elsewhere),
            step_targets=(*rewired.step_targets, *exchanged),
        )

    def _member(self, b: Boundary) -> Member:
        return Member(
            name=sync_prefix(b),
            variable=b.variable,
            dtype=b.dtype,
            dims=static_dims(b),
            owner=self.owners[b.variable],
            level=b.level,
        )


def _exchange(
    bucket: ShardBucket,
    own: Mapping[str, Boundary],
    replica: Replica,
    topology: Topology,
    keys: Mapping[str, int],
    hint: str,
) -> tuple[Sequence[Node], dict[str, Contribution], str]:
    """One replica's nodes, what flows into boundaries of what it owns, and the node that waits for all."""
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
    summed = {
        values: Contribution(rank=rank, values=total, indices=None, weight=1.0, total=True)
        for values, total in zip(mine, sums, strict=True)
    }
    return nodes, summed, done.removeprefix("^")
