"""The passes that carry out a plan, in their fixed order."""

from strategies.builders.micro_batches import n_micro_batches
from strategies.passes.accumulate import Accumulate
from strategies.passes.average import AverageVariables
from strategies.passes.combine_local import CombineLocal
from strategies.passes.compress import CompressedAllReduce, CompressedPush
from strategies.passes.hoist_reads import HoistReads
from strategies.passes.lead import HandOn, Lead
from strategies.passes.members import Between
from strategies.passes.partition import Partition
from strategies.passes.pipeline import Pass
from strategies.passes.place import Place
from strategies.passes.ps_modes import reading_passes, updating_pass
from strategies.passes.replicate import Replicate
from strategies.passes.sync_all_reduce import DenseAllReduce, SparseAllGather
from strategies.passes.transport_all_reduce import TransportAllReduce
from strategies.plan import Compression, Plan, period_of
from strategies.plan_parts import cuts_of, parts_of
from strategies.topology import Topology


def topology_of(plan: Plan) -> Topology:
    """The topology that a plan was made for."""
    return Topology(
        replicas_per_task=plan.replicas_per_task,
        batch_size=plan.batch_size,
        device=plan.device,
        micro_batches=n_micro_batches(plan.strategy_params),
    )


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
    synchronizers = {node.synchronizer for node in plan.nodes}
    replicate: tuple[Pass, ...] = (
        HoistReads(),
        *partition,
        Replicate(task=task, mirrored="ps" not in synchronizers),
        *((Accumulate(task=task),) if n_micro_batches(plan.strategy_params) > 1 else ()),
    )
    if synchronizers == {"none"}:
        return replicate
    if "ps" in synchronizers:
        return (*replicate, *_through_servers(plan, task))
    if "hierarchical-all-reduce" in synchronizers:
        return (*replicate, *_between_workers(plan, task))
    if "average" in synchronizers:
        averaged = frozenset(n.variable for n in plan.nodes if n.synchronizer == "average")
        average = AverageVariables(task=task, period=period_of(plan.strategy_params), variables=averaged)
        replicate = (*replicate, average)
    return (*replicate, CombineLocal(task=task), *_collectives(plan, task, "replicas"))


def _through_servers(plan: Plan, task: int) -> tuple[Pass, ...]:
    destinations = {n.variable: n.destination for n in plan.nodes if n.destination is not None}
    compressions = _compressions(plan)
    push = CompressedPush(task=task, destinations=destinations, compressions=compressions)
    return (
        *reading_passes(plan, task),
        CombineLocal(task=task),
        *((push,) if compressions else ()),
        updating_pass(plan, task, destinations),
        Place(task=task, destinations=destinations),
    )


def _between_workers(plan: Plan, task: int) -> tuple[Pass, ...]:
    """What a lone worker's leader collects is the total already."""
    exchange = _collectives(plan, task, "workers") if len(plan.replicas_per_task) > 1 else ()
    return (Lead(task=task), CombineLocal(task=task), *exchange, HandOn(task=task))


def _collectives(plan: Plan, task: int, between: Between) -> tuple[Pass, ...]:
    buckets, compressions = _buckets(plan), _compressions(plan)
    small = CompressedAllReduce(task=task, buckets=buckets, compressions=compressions, between=between)
    hints = {n.variable: n.transport for n in plan.nodes if n.transport in ("ring", "nccl")}
    carried = {n.variable for n in plan.nodes if n.transport == "tcp" and n.compressor is None}
    own = tuple(tuple(name for name in bucket if name in carried) for bucket in buckets)
    return (
        SparseAllGather(task=task, between=between),
        *((small,) if compressions else ()),
        *((TransportAllReduce(task=task, buckets=own, between=between),) if carried else ()),
        DenseAllReduce(task=task, buckets=buckets, between=between, hints=hints),
    )


def _compressions(plan: Plan) -> dict[str, Compression]:
    return {n.variable: n.compressor for n in plan.nodes if n.compressor is not None}


def _buckets(plan: Plan) -> tuple[tuple[str, ...], ...]:
    """Variables that travel together; those that do not travel in every step, apart from those that do."""
    groups: dict[tuple[int, str], list[str]] = {}
    for node in plan.nodes:
        if node.group is not None:
            groups.setdefault((node.group, node.synchronizer), []).append(node.variable)
    return tuple(tuple(groups[key]) for key in sorted(groups))
