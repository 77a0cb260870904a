"""The passes that carry out a plan, in their fixed order."""

from strategies.passes.combine_local import CombineLocal
from strategies.passes.compress import CompressedAllReduce, CompressedPush
from strategies.passes.hoist_reads import HoistReads
from strategies.passes.partition import Partition
from strategies.passes.pipeline import Pass
from strategies.passes.place import Place
from strategies.passes.ps_modes import reading_passes, updating_pass
from strategies.passes.replicate import Replicate
from strategies.passes.sync_all_reduce import DenseAllReduce, SparseAllGather
from strategies.plan import Plan
from strategies.plan_parts import cuts_of, parts_of
from strategies.topology import Topology


def topology_of(plan: Plan) -> Topology:
    """The topology that a plan was made for."""
    return Topology(replicas_per_task=plan.replicas_per_task, batch_size=plan.batch_size, device=plan.device)


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
    )
    if synchronizers == {"none"}:
        return replicate
    combine = CombineLocal(task=task)
    compressions = {n.variable: n.compressor for n in plan.nodes if n.compressor is not None}
    if "ps" in synchronizers:
        destinations = {n.variable: n.destination for n in plan.nodes if n.destination is not None}
        replicate = (*replicate, *reading_passes(plan, task))
        sync = updating_pass(plan, task, destinations)
        push = CompressedPush(task=task, destinations=destinations, compressions=compressions)
        encode: tuple[Pass, ...] = (push,) if compressions else ()
        return (*replicate, combine, *encode, sync, Place(task=task, destinations=destinations))
    buckets = _buckets(plan)
    small = CompressedAllReduce(task=task, buckets=buckets, compressions=compressions)
    return (
        *replicate,
        combine,
        SparseAllGather(task=task),
        *((small,) if compressions else ()),
        DenseAllReduce(task=task, buckets=buckets),
    )


def _buckets(plan: Plan) -> tuple[tuple[str, ...], ...]:
    groups: dict[int, list[str]] = {}
    for node in plan.nodes:
        if node.group is not None:
            groups.setdefault(node.group, []).append(node.variable)
    return tuple(tuple(groups[g]) for g in sorted(groups))
