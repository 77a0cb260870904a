"""All-reduce: which gradients travel together, and between whom."""

from strategies.builders.base import Param, Params, node_of
from strategies.plan import PlanNode, StepSummary, Synchronizer, VariableSummary
from strategies.topology import Topology

PARAMS = (
    Param(name="chunk_size", type=int, default=128, minimum=1),
    Param(name="bucket_bytes", type=int, default=None, minimum=1),
)


def bucketed(step: StepSummary, topology: Topology, params: Params) -> list[PlanNode]:  # noqa: ARG001 - a Layout
    """Dense gradients in buckets, filled in the order in which backward makes them ready; sparse ones alone.

    New forward state is ready before any gradient and comes first.
    """
    return _in_buckets(step, params, "all-reduce")


def hierarchical(step: StepSummary, topology: Topology, params: Params) -> list[PlanNode]:  # noqa: ARG001 - a Layout
    """As `bucketed`, between workers in place of replicas."""
    return _in_buckets(step, params, "hierarchical-all-reduce")


def _in_buckets(step: StepSummary, params: Params, synchronizer: Synchronizer) -> list[PlanNode]:
    dense = sorted((v for v in step.variables if v.synced and not v.sparse), key=readiness)
    bucket_of: dict[str, int] = {}
    bucket, n_in_bucket, bytes_in_bucket = 0, 0, 0
    limit_bytes, limit_count = params.get("bucket_bytes"), params.get("chunk_size")
    for variable in dense:
        full = (
            bytes_in_bucket + variable.bytes > int(limit_bytes)
            if limit_bytes is not None
            else n_in_bucket == int(limit_count or 1)
        )
        if n_in_bucket and full:
            bucket, n_in_bucket, bytes_in_bucket = bucket + 1, 0, 0
        bucket_of[variable.name] = bucket
        n_in_bucket += 1
        bytes_in_bucket += variable.bytes
    return [
        node_of(v, synchronizer=synchronizer if v.synced else "none", group=bucket_of.get(v.name))
        for v in step.variables
    ]


def readiness(variable: VariableSummary) -> int:
    """Place in the order in which values are ready to travel; new forward state comes before gradients."""
    return -1 if variable.readiness is None else variable.readiness
