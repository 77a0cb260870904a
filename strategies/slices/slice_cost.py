"""What the collectives of a plan cost in a step on a TPU slice, at best.

A sharded update sends what an all-reduce of the same gradients sends: its reduce-scatter and its all-gather
are the two halves of one, and together take as long. It saves no byte on the links, but memory of slots and
work of updates, of which each replica has 1/N.

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
    """Seconds of each kind of collective, one after the other; None for a kind that the plan has none of.

    Buckets do not matter: without latency, many messages take as long as one.
    """

    slice: TpuSlice
    collectives: CollectiveBytes

    @property
    def all_reduce_s(self) -> float | None:
        """Of all-reduces, in a step."""
        n_bytes = self.collectives.all_reduce_bytes
        return self.slice.torus.all_reduce_s(n_bytes) if n_bytes else None

    @property
    def reduce_scatter_s(self) -> float | None:
        """Of reduce-scatters, in a step."""
        n_bytes = self.collectives.reduce_scatter_bytes
        return self.slice.torus.reduce_scatter_s(n_bytes) if n_bytes else None

    @property
    def all_gather_s(self) -> float | None:
        """Of all-gathers, in a step."""
        n_bytes = self.collectives.all_gather_bytes
        return self.slice.torus.all_gather_s(n_bytes) if n_bytes else None

    @property
    def total_s(self) -> float:
        """Of all of them."""
        return sum(filter(None, (self.all_reduce_s, self.reduce_scatter_s, self.all_gather_s)))


def slice_cost(tpu_slice: TpuSlice, plan: Plan, step: StepSummary) -> SliceCost:
    """The cost of a plan's collectives on a slice.

    Args:
        step: that the plan was made for.
    Raises:
        StrategyError: the slice has more or fewer devices than the plan has replicas.
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
