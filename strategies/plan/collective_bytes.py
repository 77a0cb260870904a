"""Bytes that the collectives of a plan take in a step, by kind: whole payloads, before any is cut.

How many of them cross a link is another matter: see `strategies.plan.payload` for tasks of a cluster, and
`strategies.slices.torus` for chips of a TPU slice.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from strategies.plan.core_payload import CorePayload
from strategies.plan.partitions import parts_of
from strategies.plan.payload import dense_crossings, encoded_bytes, is_summed
from strategies.plan.schema import DENSE_SYNCHRONIZERS, PlanNode, StatisticSummary, StepSummary
from strategies.plan.shard_payload import Shards
from strategies.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveBytes:
    """Bytes per step of payloads that all replicas take part in.

    Attributes:
        all_gather_bytes: of all replicas' shares together.
        left_out: variables that do not travel by such a collective alone: they are on servers, or have
            gradients of rows, whose number only the step knows.
    """

    all_reduce_bytes: float
    reduce_scatter_bytes: float
    all_gather_bytes: float
    left_out: tuple[str, ...] = ()


def collective_bytes_of(
    step: StepSummary,
    nodes: Sequence[PlanNode],
    topology: Topology,
    *,
    statistics: Sequence[StatisticSummary] = (),
    period: int = 1,
    steps_per_loop: int = 1,
) -> CollectiveBytes:
    """What a plan's replicas sum, scatter and gather.

    Args:
        statistics, period, steps_per_loop: as for `payload_of`.
    """
    by_name = {v.name: v for v in step.variables}
    summed, gathered, scattered = float(sum(each.bytes for each in statistics)), 0.0, 0.0
    shards = Shards()
    left_out: dict[str, None] = {}
    for part, variable in ((part, by_name[node.variable]) for node in nodes for part in parts_of(node)):
        if part.synchronizer == "ps" or (part.sparse and part.synchronizer not in DENSE_SYNCHRONIZERS):
            left_out[variable.name] = None
        if part.synchronizer == "cross-replica-sum" or part.in_parts:
            cores = CorePayload.of(part, by_name, topology.n_replicas, steps_per_loop=steps_per_loop)
            summed += cores.summed
            scattered += cores.scattered
            gathered += cores.gathered
            continue
        if part.synchronizer in ("none", "ps"):
            continue
        shards.add(part, variable)
        if part.synchronizer == "average":
            summed += encoded_bytes(part) / period
        elif not shards.scatters(part):
            n_bytes = encoded_bytes(part) * dense_crossings(part, variable)
            summed += n_bytes if is_summed(part) else 0
            gathered += 0 if is_summed(part) else n_bytes * sum(part.n_encoders(topology))
    return CollectiveBytes(
        all_reduce_bytes=summed,
        reduce_scatter_bytes=scattered + sum(sum(shares.values()) for shares in shards.gradients.values()),
        all_gather_bytes=gathered + sum(sum(shares.values()) for shares in shards.values.values()),
        left_out=tuple(left_out),
    )
