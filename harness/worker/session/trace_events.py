"""Events of a step by kind, from TensorFlow's tracing and the workers' own transport.

TensorFlow lists a GPU's work in separate rows, on the host's wall clock, with start and length cut to whole
microseconds: kernels as `/device:GPU:0/stream:13`, copies as `/device:GPU:0/stream:14<MemcpyH2D>`, memory
initialisation and the tracer's own work as `/device:GPU:0/stream:`, and threads that wait for the GPU as
`/device:GPU:0/sync`. `stream:all` and `memcpy` repeat kernels and copies. Rows of the device itself,
`/job:worker/replica:0/task:0/device:GPU:0`, show the host preparing and launching operations.

Source:
    TensorFlow 2.21, core/profiler/convert/xplane_to_step_stats.cc.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import tensorflow as tf
from tensorflow.core.framework.step_stats_pb2 import NodeExecStats

from harness.worker.session.step_trace import GPU_DEVICE, Kind, TraceEvent
from harness.worker.transport.exchange import Moved

# A public proto that tf.compat.v1 does not export.


_RING = "ring"
# Each ends when another worker, or a background run, has reached the same point.
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
# Such as `[48B] [0.48Mb/s] edge_29_dense/kernel/read from /job:worker/… to /job:worker/…`.
_TRANSFER = re.compile(r"(?:edge_\d+_)?(\S+) from (\S+) to (\S+)$")
_DEVICE = re.compile(r"/job:\w+/replica:\d+/(task:\d+)/(?:device:)?(.*)$")
_GPU_ROW = re.compile(r"/device:(?P<gpu>GPU:\d+)/(?P<row>stream:(?P<id>\d*)(?:<(?P<copy>\w+)>)?|sync)$")
# Such as `ncclDevKernel_AllReduce_Sum_f32_RING_LL(…) regs:96 …`.
_NCCL = re.compile(r"nccl\w*Kernel")
_COPIED = re.compile(r"\bsize:(\d+)")
# They end once a result of another device of the task is copied, which is a separate event.
_RECEIVING_OPS = frozenset(("_Recv", "_HostRecv"))
_RANK = re.compile(r"\breplica_\d+\b")


class _Row(NamedTuple):
    """An operation, kernel or transfer in TensorFlow's listing, with times from an origin."""

    device: str
    node: NodeExecStats
    start_s: float
    end_s: float


def operations(
    metadata: Sequence[tf.compat.v1.RunMetadata],
    *,
    origin_ns: int,
    waits: Collection[str],
    calls: Collection[str],
) -> Iterator[TraceEvent]:
    """Events of the runs of one step.

    Args:
        metadata: TensorFlow's metadata of each run.
        origin_ns: wall clock at time 0 of events.
        waits: nodes that wait for another worker.
        calls: nodes that call functions, whose operations are listed too.
    """
    rows = [
        _row(device.device, node, origin_ns)
        for run in metadata
        for device in run.step_stats.dev_stats
        for node in device.node_stats
    ]
    made_s = {row.node.node_name: row.end_s for row in rows}
    launched = list(_on_gpus(rows))
    for event in launched:
        maker = event.name.partition(":")[0]
        if maker in made_s:
            made_s[maker] = max(made_s[maker], event.end_s)
    yield from launched
    on_gpu = any(GPU_DEVICE.match(row.device) for row in rows)
    blocked = [event for event in launched if event.row.endswith("sync")]
    summed = any(event.group for event in launched)
    for row in rows:
        if row.device.startswith("/device:GPU:"):
            continue
        if row.node.node_name in ("RecvTensor", "RecvBuf"):
            yield _transfer(row, made_s)
        else:
            event = _operation(row, waits, calls)
            in_kernels = summed and GPU_DEVICE.match(row.device) is not None
            yield from _by_host(event, blocked, in_kernels=in_kernels) if on_gpu else [event]


def devices(metadata: Sequence[tf.compat.v1.RunMetadata]) -> tuple[str, ...]:
    """TensorFlow's names of the devices used by a step, in order.

    A GPU is listed by its task's device, on which operations ran, and as `/device:GPU:0` if kernels or copies
    were traced.
    """
    names = {device.device for run in metadata for device in run.step_stats.dev_stats if device.node_stats}
    return tuple(sorted({re.sub(r"^(/device:GPU:\d+)/.*", r"\1", name) for name in names}))


def transfers(moved: Sequence[Moved], *, origin_ns: int) -> Iterator[TraceEvent]:
    """Events of a transport's transfers; see `operations`."""
    origin_s = origin_ns / 1e9
    for m in moved:
        yield TraceEvent(
            row=_RING,
            name=m.name,
            op=m.kind,
            kind="transfer",
            start_s=m.start_s - origin_s,
            end_s=m.end_s - origin_s,
            ready_s=m.came_s - origin_s,
            n_bytes=m.n_bytes,
        )


def _row(device: str, node: NodeExecStats, origin_ns: int) -> _Row:
    # GPUs' work and transfers have microseconds only; as seconds since 1970, float64 would lose fractions.
    start_ns = (node.all_start_nanos or 1000 * node.all_start_micros) - origin_ns
    length_ns = node.all_end_rel_nanos or 1000 * node.all_end_rel_micros
    return _Row(device, node, start_ns / 1e9, (start_ns + length_ns) / 1e9)


def _operation(row: _Row, waits: Collection[str], calls: Collection[str]) -> TraceEvent:
    name = row.node.node_name
    matched = _OP.search(row.node.timeline_label)
    op = matched[1] if matched else name
    collective = op.startswith("Collective")
    kind: Kind = "transfer" if collective else "compute"
    if op in _WAITING_OPS or name in waits:
        kind = "wait"
    elif name in calls:
        kind = "part"
    return TraceEvent(
        row=_in_words(row.device)[0] + (" launches" if GPU_DEVICE.match(row.device) else ""),
        name=name,
        op=op,
        kind=kind,
        start_s=row.start_s,
        end_s=row.end_s,
        group=_RANK.sub("replica", name) if collective else None,
    )


def _by_host(event: TraceEvent, blocked: Sequence[TraceEvent], *, in_kernels: bool) -> Iterator[TraceEvent]:
    """An operation that the host of GPUs runs or launches, without its waits for a GPU.

    Args:
        blocked: times in which a thread waits for a GPU.
        in_kernels: True if kernels show a collective's transfer, which then lasts from its launch to their
            end.
    """
    if event.group is not None and in_kernels:
        yield replace(event, kind="wait", group=None)
    elif event.op in _RECEIVING_OPS:
        yield replace(event, kind="part")
    elif event.kind != "compute":
        yield event
    else:
        busy = replace(event, kind="host")
        for wait in blocked:
            if busy.start_s <= wait.start_s and wait.end_s <= busy.end_s:
                yield replace(busy, end_s=wait.start_s)
                busy = replace(busy, start_s=wait.end_s)
        yield busy


def _on_gpus(rows: Iterable[_Row]) -> Iterator[TraceEvent]:
    """Kernels, copies and other rows of GPUs, by start.

    NCCL's kernels are matched by their index among kernels of the same name on the GPU.
    """
    n_before: Counter[tuple[str, str]] = Counter()
    for row in sorted(rows, key=lambda row: row.start_s):
        gpu = _GPU_ROW.match(row.device)
        if gpu is None:
            continue
        kind, group, label = _kind_on_gpu(gpu, row.node), None, row.node.timeline_label
        op = gpu["copy"] or label.partition(" regs:")[0] or row.node.node_name
        if kind == "transfer":
            group = f"{op} {n_before[gpu['gpu'], op]}"
            n_before[gpu["gpu"], op] += 1
        copied = _COPIED.search(label) if gpu["copy"] else None
        yield TraceEvent(
            row=f"{gpu['gpu']} {gpu['row'].replace(':', ' ').strip()}",
            name=row.node.node_name,
            op=op,
            kind=kind,
            start_s=row.start_s,
            end_s=row.end_s,
            group=group,
            n_bytes=int(copied[1]) if copied else None,
        )


def _kind_on_gpu(gpu: re.Match[str], node: NodeExecStats) -> Kind:
    if gpu["copy"]:
        return "copy"
    if gpu["id"]:
        return "transfer" if _NCCL.match(node.timeline_label) else "compute"
    # The tracer's own work has no operation name.
    is_set = ":" in node.node_name or node.node_name.startswith(("Memset", "CudaGraph"))
    return "compute" if is_set and gpu["row"] != "sync" else "part"


def _transfer(row: _Row, made_s: Mapping[str, float]) -> TraceEvent:
    node = row.node
    matched = _TRANSFER.search(node.timeline_label)
    name = matched[1] if matched else node.timeline_label
    device, task = _in_words(row.device)
    return TraceEvent(
        row=f"{device} receives",
        name=name,
        op=node.node_name,
        # A buffer is a piece of a collective's data.
        kind="transfer" if node.node_name == "RecvTensor" else "part",
        start_s=row.start_s,
        end_s=row.end_s,
        ready_s=made_s.get(name),
        receiver=task,
        n_bytes=sum(o.tensor_description.allocation_description.requested_bytes for o in node.output),
    )


def _in_words(device: str) -> tuple[str, int | None]:
    matched = _DEVICE.search(device)
    if matched is None:
        return device, None
    task = matched[1]
    return f"{task} {matched[2]}", int(task.partition(":")[2])
