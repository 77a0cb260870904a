"""The passes that carry out a plan, in their fixed order."""

from strategies.passes.collectives.all_reduce import DenseAllReduce, DenseReduceScatter, SparseAllGather
from strategies.passes.collectives.batch_norm import SyncStatistics
from strategies.passes.collectives.gather_variables import GatherVariables
from strategies.passes.collectives.leader_reduce import LeaderBroadcast, LeaderReduce
from strategies.passes.collectives.local_sgd import AverageVariables
from strategies.passes.collectives.separate_collectives import SeparateCollectives
from strategies.passes.collectives.shard_updates import ShardUpdates
from strategies.passes.collectives.tcp_ring import TcpAllReduce
from strategies.passes.compression.compressed_all_reduce import (
    CompressedAllReduce,
    CompressedTcpAllReduce,
    RoundedGradients,
)
from strategies.passes.compression.compressed_push import CompressedPush
from strategies.passes.parameter_server.asynchronous import AsyncUpdates, SemiSyncUpdates
from strategies.passes.parameter_server.packed import PackPulls, PackPushes
from strategies.passes.parameter_server.placement import Placement
from strategies.passes.parameter_server.proxy import ProxyVariables
from strategies.passes.parameter_server.replicated_servers import ReplicatedServers
from strategies.passes.parameter_server.synchronous import ParameterServerSync
from strategies.passes.partition.partition import PartitionVariables
from strategies.passes.replicate.broadcast_update_values import BroadcastUpdateValues
from strategies.passes.replicate.contributions import Accumulate, LocalReduce, WorkerMean
from strategies.passes.replicate.hoist_reads import HoistReads
from strategies.passes.replicate.replicate import Replicate
from strategies.passes.robust.gathered import AggregateGathered
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
from strategies.plan.schema import Plan

PASSES: tuple[type[Pass], ...] = (
    MergeRows,
    FuseUpdates,
    HoistReads,
    PartitionVariables,
    Replicate,
    Accumulate,
    SyncStatistics,
    AverageVariables,
    ProxyVariables,
    WorkerMean,
    LeaderReduce,
    LocalReduce,
    InjectFaults,
    GatherVariables,
    ShardUpdates,
    DenseReduceScatter,
    AggregateGathered,
    ReplicatedServers,
    SparseAllGather,
    CompressedAllReduce,
    RoundedGradients,
    CompressedTcpAllReduce,
    TcpAllReduce,
    DenseAllReduce,
    LeaderBroadcast,
    SeparateCollectives,
    CompressedPush,
    PackPushes,
    AsyncUpdates,
    SemiSyncUpdates,
    ParameterServerSync,
    BroadcastUpdateValues,
    Placement,
    PackPulls,
)
"""Passes of replicas with a graph of their own: copies, what a task combines, collectives, servers.

Each decides whether a plan needs it.
"""

CORE_PASSES: tuple[type[Pass], ...] = (
    MergeRows,
    FuseUpdates,
    HoistReads,
    DenseRows,
    ReplicateComputation,
    LoopOnHost,
    LoopOnCores,
    HostLoopReshard,
    EmulateCores,
)
"""Passes of emulated TPU cores, which run one computation together."""


TPU_PASSES: tuple[type[Pass], ...] = (MergeRows, FuseUpdates, HoistReads, DenseRows, ReplicateComputation)
"""Passes of real TPU cores, for which TensorFlow makes programs and loops of a replicated computation."""

UPDATE_PASSES: tuple[type[Pass], ...] = (MergeRows, FuseUpdates)
"""Passes of updates, which apply to a single replica's step too."""


def passes_of(plan: Plan, task: int) -> tuple[Pass, ...]:
    """The passes for one task; of a single replica's step nothing changes but its updates."""
    task_plan = TaskPlan.of(plan, task)
    on_cores = TPU_PASSES if plan.device == "tpu" else CORE_PASSES
    passes = on_cores if task_plan.on_cores else PASSES
    alone = sum(plan.replicas_per_task) == 1
    needed = (each.of(task_plan) for each in (UPDATE_PASSES if alone else passes))
    return tuple(each for each in needed if each is not None)
