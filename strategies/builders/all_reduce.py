"""All-reduce: assign gradients to buckets, and buckets to groups of members."""

import math
from collections.abc import Iterable, Mapping

from strategies.builders.shared_params import KNOBS
from strategies.params import Param, Params
from strategies.plan.compressors import on_own_transport
from strategies.plan.payload import most_rows_bytes
from strategies.plan.schema import PlanNode, StepSummary, Synchronizer, Transport, VariableSummary
from strategies.plan.strategy import node_of
from strategies.topology import Topology

CHUNK_SIZE = Param(
    name="chunk_size",
    type=int,
    default=128,
    minimum=1,
    tunable=(1, 4, 16, 128),
    unit="variables",
    summary="Variables per bucket; a bucket is sent as one message.",
)
BUCKET_SIZES = tuple(kib << 10 for kib in (256, 1024, 4096, 16384, 65536))
LARGE_ROWS_BYTES = 1 << 20
_TRANSPORTS: Mapping[str, Transport] = {"auto": "auto", "tcp": "tcp", "ring": "ring", "nccl": "nccl"}
_KNOBS_OF_SUMS = ("transport", "communication", "cross_device_ops")
BUCKETS = (
    CHUNK_SIZE,
    Param(
        name="bucket_bytes",
        type=int,
        default=None,
        minimum=1,
        tunable=BUCKET_SIZES,
        unit="bytes",
        summary="Largest bucket, in place of chunk_size.",
    ),
)
TRANSPORT = Param(
    name="transport",
    type=str,
    default="auto",
    choices=tuple(_TRANSPORTS),
    tunable=tuple(_TRANSPORTS),
    summary="tcp: own ring; ring, nccl: TensorFlow's; auto: tcp on CPUs, nccl on GPUs.",
)
PARAMS = (*BUCKETS, TRANSPORT, *KNOBS)


def bucketed(step: StepSummary, topology: Topology, params: Params) -> list[PlanNode]:
    """Gradients in buckets, filled in the order in which the backward pass produces them.

    New forward state is ready before any gradient and is sent first.
    """
    return in_buckets(step, topology, params, "all-reduce")


def hierarchical(step: StepSummary, topology: Topology, params: Params) -> list[PlanNode]:
    """Gradients in buckets like `bucketed`, summed between workers instead of replicas."""
    return in_buckets(step, topology, params, "hierarchical-all-reduce")


def transport_of(topology: Topology, params: Params) -> Transport:
    """Return the requested transport; by default the workers' own ring between CPU hosts, NCCL between GPUs.

    Each default is the fastest on its devices. TensorFlow's own choice is its ring through host memory, also
    on GPUs; it replaces NCCL if replicas share a GPU.
    """
    transport = _TRANSPORTS[str(params.get("transport", "auto"))]
    if transport == "auto" and topology.device == "gpu":
        return "ring" if topology.shares_devices else "nccl"
    return "tcp" if transport == "auto" and topology.n_tasks > 1 else transport


def refuse_transport(topology: Topology, params: Params) -> str | None:
    """Reason why the transport that a strategy's knob requests is unavailable, None if it is available."""
    knob = next((knob for knob in _KNOBS_OF_SUMS if params.get(knob) == "nccl"), None)
    if knob is not None and topology.nccl_mistake is not None:
        need, received = topology.nccl_mistake
        return f"{knob}=nccl needs {need}, got {received}; use auto"
    if params.get("transport") != "tcp":
        return None
    if topology.n_tasks < 2:
        return "transport=tcp needs two workers, got one; use auto"
    compressor = params.get("compressor")
    if compressor is not None and not on_own_transport(str(compressor)):
        return f"transport=tcp does not add up half precision, got compressor={compressor}; use auto, or bf16"
    return None


def notes_on_sharing(nodes: Iterable[PlanNode], topology: Topology, params: Params) -> list[str]:
    """Note that TensorFlow's ring is used between GPUs, unless a knob requests it."""
    transports = {n.transport for n in nodes if n.synchronizer in ("all-reduce", "hierarchical-all-reduce")}
    knob_values = {params.get(knob, "auto") for knob in _KNOBS_OF_SUMS}
    if not topology.shares_devices or transports <= {"tcp"} or knob_values != {"auto"}:
        return []
    return ["replicas share a GPU, which NCCL does not support: TensorFlow's ring sums through host memory"]


def in_buckets(
    step: StepSummary, topology: Topology, params: Params, synchronizer: Synchronizer
) -> list[PlanNode]:
    """Put synchronised variables into buckets of the size that the knobs allow.

    Sparse gradients are in no bucket if TensorFlow's collectives gather their rows; the workers' own ring
    sends the rows of a bucket together.
    """
    transport = transport_of(topology, params)
    nodes = {v.name: node_of(v, synchronizer=synchronizer if v.synced else "none") for v in step.variables}
    shards = max(topology.kinds().examples, key=sum)
    n_bytes = {
        v.name: most_rows_bytes(nodes[v.name], v, shards) if v.sparse else v.bytes
        for v in step.variables
        if v.synced and (transport == "tcp" or not v.sparse)
    }
    ready = sorted((v for v in step.variables if v.name in n_bytes), key=readiness)
    for name, bucket in _buckets(ready, n_bytes, params).items():
        nodes[name] = nodes[name].model_copy(update={"group": bucket, "transport": transport})
    return [nodes[v.name] for v in step.variables]


def _buckets(
    ready: Iterable[VariableSummary], n_bytes: Mapping[str, float], params: Params
) -> dict[str, int]:
    """Variable → bucket number; buckets are numbered in the order in which they are complete.

    Gradients of half a bucket or more get their own bucket, and so do rows that may be many: they need not
    wait for others, and the small ones around them can share a bucket.
    """
    limit_bytes, limit_count = params.get("bucket_bytes"), params.get("chunk_size")
    alone_bytes = math.inf if limit_bytes is None else int(limit_bytes) / 2
    buckets: list[list[str]] = []
    filled: list[str] = []
    filled_bytes = 0.0
    places: dict[str, int] = {}
    for place, variable in enumerate(ready):
        name = variable.name
        places[name] = place
        if n_bytes[name] >= (min(LARGE_ROWS_BYTES, alone_bytes) if variable.sparse else alone_bytes):
            buckets.append([name])
            continue
        full = (
            filled_bytes + n_bytes[name] > int(limit_bytes)
            if limit_bytes is not None
            else len(filled) == int(limit_count or 1)
        )
        if not filled or full:
            filled, filled_bytes = [], 0.0
            buckets.append(filled)
        filled.append(name)
        filled_bytes += n_bytes[name]
    buckets.sort(key=lambda bucket: places[bucket[-1]])
    return {name: number for number, bucket in enumerate(buckets) for name in bucket}


def readiness(variable: VariableSummary) -> int:
    """Position in the order in which values become ready; new forward state comes before gradients."""
    return -1 if variable.readiness is None else variable.readiness


PERIOD = Param(
    name="period",
    type=int,
    default=8,
    minimum=1,
    unit="steps",
    summary="Steps between two averages of the variables.",
)


def averaged(step: StepSummary, topology: Topology, params: Params) -> list[PlanNode]:
    """Variables in buckets, including those with sparse gradients.

    State that replicas add up is summed in every step: after several local steps, a sum would count the value
    that replicas started with more than once.
    """
    dense = tuple(v.model_copy(update={"sparse": False}) for v in step.variables)
    nodes = in_buckets(step.model_copy(update={"variables": dense}), topology, params, "average")
    plan_nodes = []
    for v, node in zip(step.variables, nodes, strict=True):
        if v.rule == "sum":
            plan_nodes.append(node.model_copy(update={"synchronizer": "all-reduce"}))
        else:
            plan_nodes.append(node.model_copy(update={"sparse": v.sparse, "transport": None}))
    return plan_nodes
