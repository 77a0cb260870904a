"""The passes that carry out a plan, in their fixed order."""

from collections.abc import Mapping

from strategies.builders.micro_batches import n_micro_batches
from strategies.passes.collectives.all_reduce import DenseAllReduce, SparseAllGather
from strategies.passes.collectives.batch_norm import SyncStatistics
from strategies.passes.collectives.leader import HandOn, Lead
from strategies.passes.collectives.local_sgd import AverageVariables
from strategies.passes.collectives.members import Between
from strategies.passes.collectives.reduce_scatter import DenseReduceScatter
from strategies.passes.collectives.ring_all_reduce import TransportAllReduce
from strategies.passes.collectives.separate_runs import CollectivesApart
from strategies.passes.collectives.shard_updates import ShardUpdates
from strategies.passes.compression.compress import CompressedAllReduce, CompressedPush
from strategies.passes.parameter_server.modes import reading_passes, updating_pass
from strategies.passes.parameter_server.place import Place
from strategies.passes.partition.partition import Partition
from strategies.passes.replicate.accumulate import Accumulate
from strategies.passes.replicate.combine_local import CombineLocal
from strategies.passes.replicate.hoist_reads import HoistReads
from strategies.passes.replicate.replicate import Replicate
from strategies.passes.replicate.state_hand_over import HandOver
from strategies.passes.run import Pass
from strategies.plan.partitions import cuts_of, parts_of
from strategies.plan.schema import Compression, Plan, period_of


def passes_of(plan: Plan, task: int) -> tuple[Pass, ...]:
    """The passes for one task; none at all for a single replica, whose step stays as it was captured."""
    if sum(plan.replicas_per_task) == 1:
        return ()
    cuts = cuts_of(plan.nodes)
    if cuts:  # all later passes see parts as variables
        plan = plan.model_copy(
            update={"nodes": tuple(part for node in plan.nodes for part in parts_of(node))}
        )
    partition = (Partition(cuts=cuts),) if cuts else ()
    layers = frozenset(each.layer for each in plan.statistics)
    destinations = {n.variable: n.destination for n in plan.nodes if n.destination is not None}
    replicate: tuple[Pass, ...] = (
        HoistReads(),
        *partition,
        Replicate(task=task, shared=frozenset(destinations)),
        *((Accumulate(task=task),) if n_micro_batches(plan.strategy_params) > 1 else ()),
        *((SyncStatistics(task=task, layers=layers),) if layers else ()),
    )
    synchronizers = {node.synchronizer for node in plan.nodes}
    if synchronizers == {"none"}:
        return replicate
    if "average" in synchronizers:
        averaged = frozenset(n.variable for n in plan.nodes if n.synchronizer == "average")
        average = AverageVariables(task=task, period=period_of(plan.strategy_params), variables=averaged)
        replicate = (*replicate, average)
    reduced = not synchronizers.isdisjoint(("all-reduce", "hierarchical-all-reduce", "average"))
    between: Between = "workers" if "hierarchical-all-reduce" in synchronizers else "replicas"
    served = bool(destinations)
    return (
        *replicate,
        *(reading_passes(plan, task) if served else ()),
        *((Lead(task=task),) if between == "workers" else ()),
        CombineLocal(task=task),
        *_sharding(plan, task, _buckets(plan)),
        *(_collectives(plan, task, between) if reduced else ()),
        *((CollectivesApart(task=task),) if (reduced or layers) and served else ()),
        *(_updates_on_servers(plan, task, destinations) if served else ()),
        *((HandOver(task=task),) if served else ()),
        *((Place(task=task, destinations=destinations),) if served else ()),
    )


def _collectives(plan: Plan, task: int, between: Between) -> tuple[Pass, ...]:
    """What the leader of a lone worker collects is the total already."""
    hand_on = (HandOn(task=task),) if between == "workers" else ()
    if hand_on and len(plan.replicas_per_task) == 1:
        return hand_on
    buckets = _buckets(plan)
    compressions = _compressions(plan, served=False)
    small = CompressedAllReduce(task=task, buckets=buckets, compressions=compressions, between=between)
    carried = {n.variable for n in plan.nodes if n.transport == "tcp" and n.compressor is None}
    own = tuple(tuple(name for name in bucket if name in carried) for bucket in buckets)
    owners = {name: owner for name, owner in _scattered(plan).items() if name in carried}
    return (
        SparseAllGather(task=task, between=between),
        *((small,) if compressions else ()),
        *((TransportAllReduce(task=task, buckets=own, between=between, owners=owners),) if carried else ()),
        DenseAllReduce(task=task, buckets=buckets, between=between, hints=_hints(plan)),
        *hand_on,
    )


def _updates_on_servers(plan: Plan, task: int, destinations: Mapping[str, int]) -> tuple[Pass, ...]:
    compressions = _compressions(plan, served=True)
    push = CompressedPush(task=task, destinations=destinations, compressions=compressions)
    return (*((push,) if compressions else ()), updating_pass(plan, task, destinations))


def _compressions(plan: Plan, *, served: bool) -> dict[str, Compression]:
    return {
        n.variable: n.compressor
        for n in plan.nodes
        if n.compressor is not None and (n.destination is not None) == served
    }


def _sharding(plan: Plan, task: int, buckets: tuple[tuple[str, ...], ...]) -> tuple[Pass, ...]:
    """The passes that leave updates to single replicas, none where every replica makes all of them."""
    made = [n for n in plan.nodes if n.owner is not None and n.synchronizer == "all-reduce"]
    if not made:
        return ()
    owners = {n.variable: n.owner for n in made if n.owner is not None}
    whole = frozenset(n.variable for n in made if n.whole_gradient)
    carried = frozenset(n.variable for n in made if n.transport == "tcp")
    scattered = {name: owner for name, owner in _scattered(plan).items() if name not in carried}
    return (
        ShardUpdates(
            task=task, buckets=buckets, owners=owners, whole=whole, carried=carried, hints=_hints(plan)
        ),
        *(
            (DenseReduceScatter(task=task, buckets=buckets, owners=scattered, hints=_hints(plan)),)
            if scattered
            else ()
        ),
    )


def _hints(plan: Plan) -> dict[str, str]:
    """Variable → TensorFlow's implementation of its collective, where one is asked for."""
    return {n.variable: n.transport for n in plan.nodes if n.transport in ("ring", "nccl")}


def _scattered(plan: Plan) -> dict[str, int]:
    """Variable → rank of the replica that alone gets the sum of its gradient."""
    return {
        n.variable: n.owner
        for n in plan.nodes
        if n.owner is not None and n.synchronizer == "all-reduce" and not n.whole_gradient
    }


def _buckets(plan: Plan) -> tuple[tuple[str, ...], ...]:
    """Variables that travel together; those that do not travel in every step, apart from those that do."""
    groups: dict[tuple[int, str], list[str]] = {}
    for node in plan.nodes:
        if node.group is not None:
            groups.setdefault((node.group, node.synchronizer), []).append(node.variable)
    return tuple(tuple(groups[key]) for key in sorted(groups))
