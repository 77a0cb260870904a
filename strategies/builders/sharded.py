"""Sharded updates and variables: assign owners so that all replicas own nearly as many bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heapreplace
from typing import TypeAlias

from strategies.builders import all_reduce
from strategies.builders.partitioned import MIN_BYTES, Cuts, family, near_equal
from strategies.builders.shared_params import KNOBS
from strategies.errors import first_few
from strategies.params import Param, Params
from strategies.plan.node_rules import is_owned
from strategies.plan.schema import Partition, PlanNode, StepSummary, VariableSummary
from strategies.topology import Topology

BUCKET_BYTES = Param(
    name="bucket_bytes",
    type=int,
    default=4 << 20,
    minimum=1,
    tunable=all_reduce.BUCKET_SIZES,
    unit="bytes",
    summary="Largest bucket of gradients.",
)
# NCCL needs all sums in one order, but owners start their own.
_TRANSPORTS = tuple(c for c in all_reduce.TRANSPORT.choices if c != "nccl")
TRANSPORT = replace(all_reduce.TRANSPORT, choices=_TRANSPORTS, tunable=_TRANSPORTS)
PARAMS = (MIN_BYTES, BUCKET_BYTES, TRANSPORT, *KNOBS)
LONG_PART_SLICES = 32
"""Number of slices of a part above which one more or less does not matter."""


def sharded_update(step: StepSummary, topology: Topology, params: Params) -> list[PlanNode]:
    """Give every replica one part of each large variable; smaller variables have one owner each.

    Within a bucket the largest whole variables are assigned first, each to the replica that owns the fewest
    bytes there. Variables that another update reads are updated by all replicas.
    """
    cuts = _cuts(step, topology.n_replicas, int(params[MIN_BYTES.name] or 0))
    # New values are sent dense, even if gradients are sparse.
    dense = step.model_copy(
        update={"variables": tuple(v.model_copy(update={"sparse": False}) for v in step.variables)}
    )
    nodes = {
        node.variable: node.model_copy(update={"transport": "auto"}) if node.transport == "nccl" else node
        for node in all_reduce.bucketed(dense, topology, params)
    }
    owners, cuts = _owners(step, nodes, cuts, topology.n_replicas)
    in_parts = family(step, cuts)
    plan_nodes = []
    for v in step.variables:
        node = nodes[v.name].model_copy(update={"sparse": v.sparse})
        owned = owners.get(v.slot_of or v.name)
        if v.name in in_parts and owned is not None:
            axis, sizes = cuts[in_parts[v.name]]
            groups = None if node.group is None else (node.group,) * len(sizes)
            partition = Partition(axis=axis, sizes=sizes, groups=groups, owners=owned)
            node = node.model_copy(update={"partition": partition, "group": None})
        elif owned is not None:
            node = node.model_copy(update={"owner": owned[0]})
        elif v.sparse and node.transport != "tcp":
            node = node.model_copy(update={"group": None, "transport": None})
        whole_gradient = owned is not None and v.gradient_shared and not v.sparse
        plan_nodes.append(node.model_copy(update={"whole_gradient": whole_gradient}))
    return plan_nodes


def fully_sharded(step: StepSummary, topology: Topology, params: Params) -> list[PlanNode]:
    """Owners as in `sharded_update`; all replicas keep only values that are read after their update."""
    early = {v.name for v in step.variables if v.kind == "trainable" and v.read_before_update}
    return [
        node.model_copy(update={"gathered": node.variable in early and is_owned(node)})
        for node in sharded_update(step, topology, params)
    ]


def notes(step: StepSummary, nodes: Sequence[PlanNode], *_: object) -> list[str]:
    """Notes on variables that all replicas keep, and on tables that are gathered."""
    gathered = {node.variable for node in nodes if node.gathered}
    trainables = [v for v in step.variables if v.kind == "trainable" and v.synced]
    whole_names = [v.name for v in trainables if v.name not in gathered]
    tables = [v.name for v in trainables if v.name in gathered and v.sparse]
    sentences = []
    if whole_names:
        sentences.append(
            "whole on every replica, because the step also uses them outside their own updates: "
            f"{first_few(whole_names)}"
        )
    if tables:
        sentences.append(
            f"whole table sent in every step, not only the rows that it reads: {first_few(tables)}"
        )
    return sentences


def _cuts(step: StepSummary, n: int, min_bytes: int) -> Cuts:
    """Axis and near-equal parts of each variable that has a part for every replica."""
    shapes = {v.name: v.shape for v in step.variables}
    # All parts would read a slot of another shape.
    odd = {v.slot_of for v in step.variables if v.slot_of is not None and v.shape != shapes[v.slot_of]}
    cuts = {}
    for v in step.variables:
        axes = [a for a in v.apart_axes if v.shape[a] >= n]
        if v.synced and v.bytes >= min_bytes and axes and v.name not in odd:
            axis = _axis(v.shape, axes, n)
            cuts[v.name] = (axis, near_equal(v.shape[axis], n))
    return cuts


def _axis(shape: Sequence[int], axes: Sequence[int], n: int) -> int:
    """First axis with nearly equal parts in few contiguous stretches of memory, else the longest axis."""
    good = [axis for axis in axes if shape[axis] % n == 0 or shape[axis] >= LONG_PART_SLICES * n]
    return min(good) if good else max(axes, key=lambda axis: (shape[axis], -axis))


def _owners(
    step: StepSummary, nodes: Mapping[str, PlanNode], cuts: Cuts, n: int
) -> tuple[dict[str, tuple[int, ...]], Cuts]:
    """Variable → ranks of the owners of its parts, a single rank for a whole variable; and the final cuts.

    Parts belong to all ranks in order. Their longer ones begin at the rank that owns the fewest bytes.
    """
    # An empty variable would send nothing, and its receiver would wait for ever.
    owned = [v for v in step.variables if v.kind == "trainable" and v.synced and v.apart and v.bytes]
    in_all = [0] * n
    in_bucket: dict[_Bucket, list[int]] = {}
    owners: dict[str, tuple[int, ...]] = {}
    final_cuts = dict(cuts)
    for v in (v for v in owned if v.name in cuts):
        axis, sizes = cuts[v.name]
        rank_bytes = in_bucket.setdefault(_bucket(v, nodes), [0] * n)
        first = min(range(n), key=lambda rank: (rank_bytes[rank], in_all[rank], rank))
        by_rank = (*sizes[n - first :], *sizes[: n - first])
        for rank, size in enumerate(by_rank):
            n_bytes = v.bytes * size // v.shape[axis]
            rank_bytes[rank] += n_bytes
            in_all[rank] += n_bytes
        owners[v.name] = tuple(range(n))
        final_cuts[v.name] = (axis, by_rank)
    heaps: dict[_Bucket, list[tuple[int, int, int]]] = {}
    for v in sorted((v for v in owned if v.name not in cuts), key=lambda v: -v.bytes):
        bucket = _bucket(v, nodes)
        if bucket not in heaps:
            before = in_bucket.get(bucket, [0] * n)
            heaps[bucket] = [(n_bytes, in_all[rank], rank) for rank, n_bytes in enumerate(before)]
            heapify(heaps[bucket])
        bucket_bytes, rank = _least_loaded(heaps[bucket], in_all)
        in_all[rank] += v.bytes
        heapreplace(heaps[bucket], (bucket_bytes + v.bytes, in_all[rank], rank))
        owners[v.name] = (rank,)
    return owners, final_cuts


def _least_loaded(loads: list[tuple[int, int, int]], in_all: Sequence[int]) -> tuple[int, int]:
    """Bytes in a bucket, and rank, of the replica with the fewest there, then in all, then the lowest rank.

    Args:
        loads: heap of these three; bytes in all are brought up to date, because other buckets change them.
    """
    bucket_bytes, all_bytes, rank = loads[0]
    while all_bytes != in_all[rank]:
        heapreplace(loads, (bucket_bytes, in_all[rank], rank))
        bucket_bytes, all_bytes, rank = loads[0]
    return bucket_bytes, rank


_Bucket: TypeAlias = tuple[int | None, str]


def _bucket(v: VariableSummary, nodes: Mapping[str, PlanNode]) -> _Bucket:
    return nodes[v.name].group, v.dtype
