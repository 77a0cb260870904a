"""Time of a plan's collectives on a TPU slice: a simulated step of published links and free computation.

The reduce-scatter and all-gather of a sharded update are the two halves of an all-reduce and together take as
long. It sends as many bytes, but each replica stores 1/N of the slots and does 1/N of the updates
(Xu et al. 2020, Automatic cross-replica sharding of weight update, arXiv:2004.13336).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from harness.prediction.costs import CollectiveCost, Costs
from harness.prediction.profile import StepProfile
from harness.prediction.step_model import Machines, PlannedStep, simulate_step
from strategies.plan.exchanges.flow import Carrier, Flow, Op
from strategies.plan.links import Ring
from strategies.plan.schema import Plan, StepSummary
from strategies.plan.traffic import CollectiveBytes, collective_bytes_of
from strategies.planner import exchanges, topology_of
from strategies.tpu_slices import TpuSlice

_CORES: Carrier = "cores"
_KNOWN = Costs(collectives={_CORES: CollectiveCost()})
_FREE = _KNOWN.with_values(dict.fromkeys(_KNOWN.flat(), 0.0))
"""Collectives that cost nothing but the time of their bytes on links."""
_HALVES: Mapping[Op, int] = {"sum": 2, "scatter": 1, "gather": 1}
"""Collective → passes over a ring. In each pass, a chip sends (n − 1)/n of a payload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceCost:
    """Seconds of each kind of collective, in sequence.

    Buckets do not matter: without latency, many messages take as long as one.

    Attributes:
        seconds: kind → time in a step; kinds that the plan lacks are left out.
    """

    slice: TpuSlice
    collectives: CollectiveBytes
    seconds: Mapping[Op, float]

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())


def slice_cost(tpu_slice: TpuSlice, plan: Plan, step: StepSummary) -> SliceCost:
    """Time of a plan's collectives on a slice.

    Args:
        step: the step that was planned.
    Raises:
        StrategyError: the numbers of devices and replicas differ.
    """
    tpu_slice.require_replicas(sum(plan.replicas_per_task))
    flows = exchanges(plan, step)
    seconds = {op: _seconds(tpu_slice, plan, step, flows, op) for op in _HALVES}
    return SliceCost(
        slice=tpu_slice,
        collectives=collective_bytes_of(flows, plan.nodes),
        seconds={op: op_s for op, op_s in seconds.items() if op_s},
    )


def _seconds(tpu_slice: TpuSlice, plan: Plan, step: StepSummary, flows: tuple[Flow, ...], op: Op) -> float:
    """Duration of a step whose only work is one kind of collectives between chips."""
    torus = tpu_slice.torus
    n = torus.n_chips
    between_chips = [
        replace(
            flow,
            transport=_CORES,
            compressor=None,
            n_members=n,
            links=Ring(n_tasks=n, forwarded=_HALVES[op] * (n - 1) * flow.n_bytes / n),
        )
        for flow in flows
        if flow.op == op and flow.n_bytes
    ]
    by_chip = plan.model_copy(update={"replicas_per_task": (1,) * n, "nodes": ()})
    profiles = {
        sum(examples): StepProfile(examples=sum(examples), compute_s=0.0, update_s=0.0, variables={})
        for examples in topology_of(by_chip).kinds().examples
    }
    planned = PlannedStep(plan=by_chip, step=step, flows=between_chips, profiles=profiles)
    return simulate_step(planned, _FREE, Machines(link_bytes_per_s=torus.chip_bytes_per_s)).step_s
