"""The passes that carry out a plan, in their fixed order, each with a condition on the plan."""

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import TypeAlias

from strategies.passes.collectives.all_reduce import DenseAllReduce, DenseReduceScatter, SparseAllGather
from strategies.passes.collectives.batch_norm import SyncStatistics
from strategies.passes.collectives.gather_variables import GatherVariables
from strategies.passes.collectives.leader_reduce import LeaderBroadcast, LeaderReduce
from strategies.passes.collectives.local_sgd import AverageVariables
from strategies.passes.collectives.separate_collectives import SeparateCollectives
from strategies.passes.collectives.shard_updates import ShardUpdates
from strategies.passes.collectives.tcp_ring import TcpAllReduce
from strategies.passes.compression.compressed import (
    CompressedAllReduce,
    CompressedPush,
    CompressedTcpAllReduce,
    RoundedGradients,
)
from strategies.passes.parameter_server.asynchronous import AsyncUpdates
from strategies.passes.parameter_server.packed_messages import PackPulls, PackPushes
from strategies.passes.parameter_server.placement import Placement
from strategies.passes.parameter_server.proxy import ProxyVariables
from strategies.passes.parameter_server.replicated_servers import ReplicatedServers
from strategies.passes.parameter_server.semi_synchronous import SemiSyncUpdates
from strategies.passes.parameter_server.synchronous import ParameterServerSync
from strategies.passes.partition.partition import PartitionVariables
from strategies.passes.replicate.broadcast_update_values import BroadcastUpdateValues
from strategies.passes.replicate.contributions import Accumulate, LocalReduce, WorkerMean
from strategies.passes.replicate.hoist_reads import HoistReads
from strategies.passes.replicate.replicate import Replicate
from strategies.passes.robust.aggregate_gathered import AggregateGathered
from strategies.passes.robust.inject_faults import InjectFaults
from strategies.passes.run import Pass
from strategies.passes.task_plan import TaskPlan
from strategies.passes.tpu.dense_rows import DenseRows
from strategies.passes.tpu.emulate_cores import EmulateCores
from strategies.passes.tpu.host_loop_reshard import HostLoopReshard
from strategies.passes.tpu.loops import LoopOnCores, LoopOnHost
from strategies.passes.tpu.replicate import ReplicateComputation
from strategies.passes.update.fuse import FuseUpdates
from strategies.passes.update.merge_rows import MergeRows
from strategies.plan.node_rules import is_owned
from strategies.plan.schema import Plan

PassTable: TypeAlias = Mapping[type[Pass], Callable[[TaskPlan], bool]]
"""Passes, in order → condition on the plan."""

UPDATE_PASSES: PassTable = {
    MergeRows: lambda plan: bool(plan.merged_rows),
    FuseUpdates: lambda plan: plan.execution.fused_update,
}
"""Passes that rewrite updates; they apply to a single replica's step too."""

PASSES: PassTable = {
    **UPDATE_PASSES,
    HoistReads: lambda _: True,
    PartitionVariables: lambda plan: bool(plan.cuts),
    Replicate: lambda _: True,
    Accumulate: lambda plan: plan.execution.micro_batches > 1,
    SyncStatistics: lambda plan: bool(plan.layers),
    AverageVariables: lambda plan: "average" in plan.synchronizers,
    ProxyVariables: lambda plan: plan.is_served and bool(plan.proxies),
    WorkerMean: lambda plan: plan.weighs_own_examples,
    LeaderReduce: lambda plan: plan.between == "workers",
    LocalReduce: lambda plan: plan.is_synchronized,
    InjectFaults: lambda plan: plan.is_synchronized and bool(plan.own_faults),
    GatherVariables: lambda plan: bool(plan.gathered),
    ShardUpdates: lambda plan: bool(plan.owners),
    DenseReduceScatter: lambda plan: bool(plan.scattered_by_collectives),
    AggregateGathered: lambda plan: "robust-gather" in plan.synchronizers and plan.n_tasks > 1,
    ReplicatedServers: lambda plan: plan.aggregation is not None and "robust-servers" in plan.synchronizers,
    SparseAllGather: lambda plan: plan.needs_collectives,
    CompressedAllReduce: lambda plan: plan.needs_collectives and bool(plan.compressions("collectives")),
    RoundedGradients: lambda plan: plan.needs_collectives and bool(plan.rounded_on_wire),
    CompressedTcpAllReduce: lambda plan: plan.needs_collectives and bool(plan.compressions("own transport")),
    TcpAllReduce: lambda plan: plan.needs_collectives and bool(plan.summed_on_own_transport),
    DenseAllReduce: lambda plan: plan.needs_collectives,
    LeaderBroadcast: lambda plan: plan.is_reduced and plan.between == "workers",
    SeparateCollectives: lambda plan: plan.is_served and (plan.is_reduced or bool(plan.layers)),
    CompressedPush: lambda plan: plan.is_served and bool(plan.compressions("servers")),
    PackPushes: lambda plan: plan.is_served and plan.n_tasks > 1,
    AsyncUpdates: lambda plan: plan.is_served and not plan.execution.sync,
    SemiSyncUpdates: lambda plan: plan.is_served and plan.execution.sync and not plan.execution.waits_for_all,
    ParameterServerSync: lambda plan: plan.is_served and plan.execution.waits_for_all,
    BroadcastUpdateValues: lambda plan: plan.is_served,
    Placement: lambda plan: plan.is_served,
    PackPulls: lambda plan: plan.is_served and plan.n_tasks > 1,
}
"""Passes of replicas with separate graphs: copies, sums within a task, collectives, servers."""

TPU_PASSES: PassTable = {
    **UPDATE_PASSES,
    HoistReads: lambda _: True,
    DenseRows: lambda plan: any(node.sparse for node in plan.nodes),
    ReplicateComputation: lambda _: True,
}
"""Passes of real TPU cores; TensorFlow compiles a replicated computation for them and loops over steps."""

CORE_PASSES: PassTable = {
    **TPU_PASSES,
    LoopOnHost: lambda plan: not plan.execution.loops_on_device,
    LoopOnCores: lambda plan: plan.execution.loops_on_device,
    HostLoopReshard: lambda plan: bool(plan.in_parts),
    EmulateCores: lambda _: True,
}
"""Passes of emulated TPU cores, which run one computation together."""

_EQUAL_ON_ALL_TASKS = frozenset((MergeRows, FuseUpdates, HoistReads, PartitionVariables, DenseRows))
"""Passes with the same result on every task; not `PartitionVariables` if parts have owners."""


def passes_of(plan: Plan, task: int) -> tuple[Pass, ...]:
    """Passes for one task; for a single replica, only those that rewrite updates."""
    task_plan = TaskPlan(plan=plan, task=task)
    on_cores = TPU_PASSES if plan.device == "tpu" else CORE_PASSES
    alone = sum(plan.replicas_per_task) == 1
    table = UPDATE_PASSES if alone else on_cores if task_plan.on_cores else PASSES
    return tuple(
        pass_class(plan=task_plan) for pass_class, is_needed in table.items() if is_needed(task_plan)
    )


def n_shared(plan: Plan, passes: Sequence[Pass]) -> int:
    """Number of leading passes with the same result on every task."""
    by_owners = any(node.partition is not None and is_owned(node) for node in plan.nodes)
    equal = _EQUAL_ON_ALL_TASKS.difference([PartitionVariables] if by_owners else ())
    return sum(1 for _ in takewhile(lambda rewrite: type(rewrite) in equal, passes))
