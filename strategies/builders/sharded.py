"""Sharded updates and variables: assign owners so that all replicas own nearly as many bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from heapq import heapreplace

from strategies.builders import all_reduce
from strategies.builders.partitioned import MIN_BYTES, Cuts, alike_sizes, family, near_equal
from strategies.builders.shared_params import KNOBS
from strategies.errors import first_few
from strategies.params import Param, Params
from strategies.plan.node_rules import is_owned
from strategies.plan.schema import Partition, PlanNode, StepSummary
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

    Within a bucket the largest parts are assigned first, each to the replica that owns the fewest bytes
    there. Variables that another update reads are updated by all replicas.
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
    owners, cuts = _by_rank(_owners(step, nodes, cuts, topology.n_replicas), cuts)
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
) -> dict[str, tuple[int, ...]]:
    """Variable → ranks of the owners of its parts, a single rank for a whole variable."""
    # An empty variable would send nothing, and its receiver would wait for ever.
    owned = [v for v in step.variables if v.kind == "trainable" and v.synced and v.apart and v.bytes]
    pieces = [
        (v.bytes * size // length, v, n_parts)
        for v in owned
        for size, length, n_parts in alike_sizes(v, cuts)
    ]
    in_all = [0] * n
    in_bucket: dict[tuple[int | None, str], list[tuple[int, int, int]]] = {}
    ranks: dict[str, list[int]] = {v.name: [] for v in owned}
    for size, v, n_parts in sorted(pieces, key=lambda piece: -piece[0]):
        bucket = nodes[v.name].group, v.dtype
        if bucket not in in_bucket:
            in_bucket[bucket] = sorted((0, n_bytes, rank) for rank, n_bytes in enumerate(in_all))
        loads = in_bucket[bucket]
        for _ in range(n_parts):
            bucket_bytes, rank = _least_loaded(loads, in_all)
            in_all[rank] += size
            heapreplace(loads, (bucket_bytes + size, in_all[rank], rank))
            ranks[v.name].append(rank)
    return {name: tuple(owners) for name, owners in ranks.items()}


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


def _by_rank(owners: Mapping[str, tuple[int, ...]], cuts: Cuts) -> tuple[dict[str, tuple[int, ...]], Cuts]:
    """Parts in the order of their owners, so that a gather returns them in order."""
    ordered = {name: tuple(sorted(ranks)) for name, ranks in owners.items()}
    sizes = {
        name: tuple(size for _, size in sorted(zip(ranks, cuts[name][1], strict=True)))
        for name, ranks in owners.items()
        if name in cuts
    }
    return ordered, {name: (axis, sizes.get(name, old)) for name, (axis, old) in cuts.items()}
