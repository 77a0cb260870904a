"""Payload of compressed gradients: the bytes of each, and which gradients a compressor makes smaller."""

import math
from collections.abc import Sequence

from strategies.ir.sizes import element_bytes, n_elements
from strategies.plan.compressors import BY_NAME, FLOATING, on_own_transport
from strategies.plan.schema import Compression, PlanNode, StepSummary
from strategies.topology import Topology

QSGD_BLOCK = 512
WORD_BYTES = 4
_WORD_BITS = 32


def compressed(
    nodes: Sequence[PlanNode], step: StepSummary, compression: Compression | None, topology: Topology
) -> tuple[PlanNode, ...]:
    """The plan's nodes, those marked whose gradients a compressor makes smaller.

    The others travel as they are: integers, rows of sparse gradients, new forward state, lengths that are
    unknown, vectors where a matrix is needed, what no other worker is told, and what would not be fewer bytes
    on the wire, where a gather among n members sends n/2 times the bytes of an all-reduce of as much.
    """
    if compression is None:
        return tuple(nodes)
    kinds = {v.name: v.kind for v in step.variables}

    def of(node: PlanNode) -> PlanNode:
        stays = node.transport is None or (node.transport == "tcp" and on_own_transport(compression.name))
        transport = node.transport if stays else "auto"
        encoded = node.model_copy(update={"compressor": compression, "transport": transport})
        gains = kinds[node.variable] == "trainable" and _gains(encoded, compression, topology)
        return encoded if gains else node

    return tuple(map(of, nodes))


def payload_bytes(shape: Sequence[int], dtype: str, compression: Compression) -> int:
    """Bytes of one encoded gradient."""
    n, value_bytes = n_elements(shape), max(element_bytes(dtype), WORD_BYTES)
    codec = BY_NAME[compression.name].codec
    if codec == "topk":
        return n_kept(n, compression.ratio or 0.0) * (value_bytes + WORD_BYTES)
    if codec == "power":
        return (n // shape[-1] + shape[-1]) * n_directions(shape, compression.rank or 0) * value_bytes
    if codec == "signs":
        return value_bytes + -(-n // _WORD_BITS) * WORD_BYTES
    if codec == "quantized":
        return -(-n // QSGD_BLOCK) * (QSGD_BLOCK + value_bytes)
    return n * element_bytes(codec)


def is_added_up(compression: Compression) -> bool:
    """Whether encodings are added up on their way; others are gathered from all and added after."""
    return BY_NAME[compression.name].codec in ("half", "bfloat16", "power")


def n_kept(n: int, ratio: float) -> int:
    """How many of n values top-k sends: ⌈ratio·n⌉, at least one."""
    # Without the margin 0.07 × 100, which is 7.000000000000001, would be 8.
    return min(n, max(1, math.ceil(ratio * n - 1e-9)))


def n_directions(shape: Sequence[int], rank: int) -> int:
    """Columns of the two factors that a gradient of this shape becomes: no more than its own rank can be."""
    return max(1, min(rank, shape[-1], n_elements(shape[:-1])))


def _gains(node: PlanNode, compression: Compression, topology: Topology) -> bool:
    stays = node.synchronizer in ("none", "average")
    if stays or node.sparse or node.dtype not in FLOATING or -1 in node.shape:
        return False
    if not n_elements(node.shape) or (BY_NAME[compression.name].matrices and len(node.shape) < 2):
        return False
    if topology.n_tasks == 1 if node.synchronizer == "ps" else node.n_members(topology) == 1:
        return False
    is_gathered = node.synchronizer != "ps" and not is_added_up(compression)
    growth = sum(node.n_encoders(topology)) / 2 if is_gathered else 1.0
    return growth * payload_bytes(node.shape, node.dtype, compression) < node.bytes
