"""Events of a step, as TensorFlow's tracing and the workers' own transport tell them."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

import tensorflow as tf

# A public proto that tf.compat.v1 does not export.
from tensorflow.core.framework.step_stats_pb2 import NodeExecStats

from harness.worker.tracing.step_trace import Kind, TraceEvent
from harness.worker.transport.exchange import Moved

_RING = "ring"
# Each ends when another worker, or what runs beside the step, has come so far.
_WAITING_OPS = frozenset(
    (
        "AccumulatorTakeGradient",
        "SparseAccumulatorTakeGradient",
        "QueueEnqueueV2",
        "QueueEnqueueManyV2",
        "QueueDequeueV2",
        "QueueDequeueManyV2",
    )
)
_OP = re.compile(r" = (\w+)\(")
# As in `[48B] [0.48Mb/s] edge_29_dense/kernel/read from /job:worker/… to /job:worker/…`.
_TRANSFER = re.compile(r"(?:edge_\d+_)?(\S+) from (\S+) to (\S+)$")
_DEVICE = re.compile(r"/job:\w+/replica:\d+/(task:\d+)/(?:device:)?(.*)$")
# A stream's kernels, a GPU's copies or waits for it, as in `/device:GPU:0/stream:13<MemcpyH2D>`.
_GPU_ROW = re.compile(r"(?P<gpu>/device:GPU:\d+)/(?:stream:|memcpy$|sync$)")
_RANK = re.compile(r"\breplica_\d+\b")


def operations(
    metadata: Sequence[tf.compat.v1.RunMetadata], *, waits: Collection[str], calls: Collection[str]
) -> Iterator[TraceEvent]:
    """Operations and transfers of the runs of one step.

    Args:
        metadata: of each run.
        waits: nodes that wait for another worker by themselves.
        calls: nodes of which others are a part: operations of the functions that they call.
    """
    node_stats = [
        (device.device, node)
        for run in metadata
        for device in run.step_stats.dev_stats
        for node in device.node_stats
    ]
    made_s = {node.node_name: _end_s(node) for _, node in node_stats}
    for device, node in node_stats:
        if node.node_name in ("RecvTensor", "RecvBuf"):
            yield _transfer(node, device, made_s)
        else:
            yield _operation(node, device, waits, calls)


def devices(metadata: Sequence[tf.compat.v1.RunMetadata]) -> tuple[str, ...]:
    """Devices on which anything of one step's runs ran, in order, as TensorFlow names them.

    A GPU is listed by the name of its task's device, on which operations ran, and as `/device:GPU:0` if
    kernels or copies of it were traced.
    """
    names = {device.device for run in metadata for device in run.step_stats.dev_stats if device.node_stats}
    matched = {name: _GPU_ROW.match(name) for name in names}
    return tuple(sorted({row["gpu"] if row else name for name, row in matched.items()}))


def transfers(moved: Sequence[Moved]) -> Iterator[TraceEvent]:
    """What a transport moved."""
    for m in moved:
        yield TraceEvent(
            row=_RING,
            name=m.name,
            op=m.kind,
            kind="transfer",
            start_s=m.start_s,
            end_s=m.end_s,
            ready_s=m.came_s,
            n_bytes=m.n_bytes,
        )


def _operation(
    node: NodeExecStats, device: str, waits: Collection[str], calls: Collection[str]
) -> TraceEvent:
    matched = _OP.search(node.timeline_label)
    op = matched[1] if matched else node.node_name
    collective = op.startswith("Collective")
    kind: Kind = "transfer" if collective else "compute"
    if op in _WAITING_OPS or node.node_name in waits:
        kind = "wait"
    elif node.node_name in calls:
        kind = "part"
    return TraceEvent(
        row=_row(device)[0],
        name=node.node_name,
        op=op,
        kind=kind,
        start_s=_start_s(node),
        end_s=_end_s(node),
        group=_RANK.sub("replica", node.node_name) if collective else None,
    )


def _transfer(node: NodeExecStats, device: str, made_s: Mapping[str, float]) -> TraceEvent:
    matched = _TRANSFER.search(node.timeline_label)
    name = matched[1] if matched else node.timeline_label
    row, task = _row(device)
    return TraceEvent(
        row=f"{row} receives",
        name=name,
        op=node.node_name,
        # A buffer is a piece of what a collective moves.
        kind="transfer" if node.node_name == "RecvTensor" else "part",
        start_s=_start_s(node),
        end_s=_end_s(node),
        ready_s=made_s.get(name),
        receiver=task,
        n_bytes=sum(o.tensor_description.allocation_description.requested_bytes for o in node.output),
    )


def _row(device: str) -> tuple[str, int | None]:
    """A device in words, and its task."""
    matched = _DEVICE.search(device)
    if matched is None:
        return device, None
    task = matched[1]
    return f"{task} {matched[2]}", int(task.partition(":")[2])


def _start_s(node: NodeExecStats) -> float:
    # Transfers are told in microseconds alone.
    return float(node.all_start_nanos / 1e9 or node.all_start_micros / 1e6)


def _end_s(node: NodeExecStats) -> float:
    return _start_s(node) + float(node.all_end_rel_nanos / 1e9 or node.all_end_rel_micros / 1e6)
