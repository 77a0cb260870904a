"""Least time of a plan's collectives in a step on a TPU slice.

The reduce-scatter and all-gather of a sharded update are the two halves of an all-reduce and together take as
long. It saves no byte on the links, but memory of slots and work of updates, of which each replica has 1/N.

Source:
    Xu et al. 2020, Automatic cross-replica sharding of weight update, arXiv:2004.13336.
"""

from dataclasses import dataclass

from strategies.plan.payload import CollectiveBytes, collective_bytes_of
from strategies.plan.schema import Plan, StepSummary
from strategies.planner import topology_of
from strategies.slices.tpu_slice import TpuSlice


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceCost:
    """Seconds of each kind of collective, in sequence; None for a kind that the plan lacks.

    Buckets do not matter: without latency, many messages take as long as one.
    """

    slice: TpuSlice
    collectives: CollectiveBytes

    @property
    def all_reduce_s(self) -> float | None:
        n_bytes = self.collectives.all_reduce_bytes
        return self.slice.torus.all_reduce_s(n_bytes) if n_bytes else None

    @property
    def reduce_scatter_s(self) -> float | None:
        n_bytes = self.collectives.reduce_scatter_bytes
        return self.slice.torus.reduce_scatter_s(n_bytes) if n_bytes else None

    @property
    def all_gather_s(self) -> float | None:
        n_bytes = self.collectives.all_gather_bytes
        return self.slice.torus.all_gather_s(n_bytes) if n_bytes else None

    @property
    def total_s(self) -> float:
        return sum(filter(None, (self.all_reduce_s, self.reduce_scatter_s, self.all_gather_s)))


def slice_cost(tpu_slice: TpuSlice, plan: Plan, step: StepSummary) -> SliceCost:
    """Cost of a plan's collectives on a slice.

    Raises:
        StrategyError: the numbers of devices and replicas differ.
    """
    topology = topology_of(plan)
    tpu_slice.require_replicas(topology.n_replicas)
    collectives = collective_bytes_of(
        step,
        plan.nodes,
        topology,
        statistics=plan.statistics,
        period=plan.execution.period,
        steps_per_loop=plan.execution.steps_per_loop,
    )
    return SliceCost(slice=tpu_slice, collectives=collectives)
