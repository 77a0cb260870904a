"""Partitioned variables: along which axis, into how many parts, and where the parts go."""

import random
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import TypeAlias

from strategies.builders import all_reduce, parameter_server
from strategies.builders.base import Param, Params, node_of
from strategies.plan import Partition, PlanNode, StepSummary, VariableSummary
from strategies.topology import Topology

MAX_SHARDS = Param(name="max_shards", type=int, default=16, minimum=2)
MIN_BYTES = Param(name="min_bytes", type=int, default=16384, minimum=1)
SEED = Param(name="seed", type=int, default=0, minimum=0)
CUTTING = frozenset({MAX_SHARDS.name, MIN_BYTES.name})
"""A strategy with one of these knobs cuts what it can."""
_N_NAMED = 3  # of the variables in a note
Cuts: TypeAlias = Mapping[str, tuple[int, tuple[int, ...]]]
"""Variable → axis and sizes of its parts."""


def smallest_divisor(length: int) -> int | None:
    """The smallest number ≥ 2 that divides a length; None for lengths below 2."""
    if length < 2:
        return None
    return next((n for n in range(2, int(length**0.5) + 1) if length % n == 0), length)


def smallest_non_divisor(length: int) -> int | None:
    """The smallest number ≥ 2 that does not divide a length, at most the length; None where there is none."""
    return next((n for n in range(2, length + 1) if length % n), None)


def near_equal(length: int, n: int) -> tuple[int, ...]:
    """Sizes of n parts that differ by one at most, the longer ones first."""
    share, longer = divmod(length, n)
    return tuple(share + (k < longer) for k in range(n))


def partitioned_ps(step: StepSummary, topology: Topology, params: Params) -> list[PlanNode]:
    """Axis 0 in as many equal parts as its smallest divisor."""
    return _servers(step, topology, params, _cut_by(step, smallest_divisor, params, _axis_0))


def uneven_partitioned_ps(step: StepSummary, topology: Topology, params: Params) -> list[PlanNode]:
    """Axis 0 in as many parts as the smallest number that does not divide its length."""
    return _servers(step, topology, params, _cut_by(step, smallest_non_divisor, params, _axis_0))


def sharded_ps(step: StepSummary, topology: Topology, params: Params) -> list[PlanNode]:
    """Every large variable over all servers; one with fewer rows than servers stays whole."""

    def n_servers(length: int) -> int | None:
        return topology.n_tasks if 1 < topology.n_tasks <= length else None

    cuts = _cut_by(step, n_servers, {}, _axis_0)
    large = {v.name for v in step.variables if v.bytes >= int(params[MIN_BYTES.name] or 0)}
    return _servers(
        step, topology, params, {name: cut for name, cut in cuts.items() if name in large}, apart=True
    )


def partitioned_all_reduce(step: StepSummary, topology: Topology, params: Params) -> list[PlanNode]:
    """Axis 0 in as many equal parts as its smallest divisor, each reduced by itself."""
    return _collectives(step, topology, params, _cut_by(step, smallest_divisor, params, _axis_0))


def random_axis(step: StepSummary, topology: Topology, params: Params) -> list[PlanNode]:
    """A seeded random axis with length > 1, axis 0 for a sparse gradient."""
    draw = random.Random(int(params[SEED.name] or 0))  # noqa: S311 - any sequence that a seed repeats

    def drawn(v: VariableSummary) -> int | None:
        axes = [a for a in v.partitionable_axes if v.shape[a] > 1]
        return draw.choice(axes) if axes else None

    return _collectives(step, topology, params, _cut_by(step, smallest_divisor, params, drawn))


def kept_whole(step: StepSummary, nodes: Sequence[PlanNode]) -> list[str]:
    """Which variables stay whole because of their updates, in one sentence for a plan, if any do."""
    cut = {node.variable for node in nodes if node.partition is not None}
    whole = [
        f"{v.name!r} ({next(iter(v.cut_refusals.values()))})"
        for v in step.variables
        if v.kind == "trainable" and v.synced and v.cut_refusals and v.name not in cut
    ]
    if not whole:
        return []
    more = f" and {len(whole) - _N_NAMED} more" if len(whole) > _N_NAMED else ""
    return [f"kept whole, since their updates cannot be cut: {', '.join(whole[:_N_NAMED])}{more}"]


def _axis_0(v: VariableSummary) -> int | None:
    return 0 if 0 in v.partitionable_axes else None


def _cut_by(
    step: StepSummary,
    n_parts: Callable[[int], int | None],
    params: Params,
    axis_of: Callable[[VariableSummary], int | None],
) -> Cuts:
    """Cuts of the trainables that allow one; more parts than `max_shards` leave a variable whole."""
    most = params.get(MAX_SHARDS.name)
    cuts = {}
    for v in step.variables:
        axis = axis_of(v) if v.kind == "trainable" and v.synced else None
        n = None if axis is None else n_parts(v.shape[axis])
        if axis is not None and n is not None and (most is None or n <= int(most)):
            cuts[v.name] = (axis, near_equal(v.shape[axis], n))
    return cuts


def family(step: StepSummary, cuts: Container[str]) -> dict[str, str]:
    """Variable or slot → the variable with which it is cut."""
    shapes = {v.name: v.shape for v in step.variables}
    return {
        v.name: owner
        for v in step.variables
        if (owner := v.slot_of or v.name) in cuts and v.shape == shapes[owner]
    }


def _servers(
    step: StepSummary, topology: Topology, params: Params, cuts: Cuts, *, apart: bool = False
) -> list[PlanNode]:
    """What is cut in parts and what is whole, placed together: the largest first, on the least loaded server.

    Args:
        apart: no two parts of a variable on one server, where there are as many.
    """
    n_bytes: dict[str, int] = {}
    for v in step.variables:
        n_bytes[v.slot_of or v.name] = n_bytes.get(v.slot_of or v.name, 0) + v.bytes
    pieces = []
    for v in step.variables:
        if v.synced and v.kind == "trainable":
            _, sizes = cuts.get(v.name, (0, (1,)))
            pieces += [(n_bytes[v.name] * size // sum(sizes), v.name, k) for k, size in enumerate(sizes)]
        elif v.synced:
            pieces.append((n_bytes[v.name], v.name, 0))
    order = {v.name: i for i, v in enumerate(step.variables)}
    held = [0] * topology.n_tasks
    placed: dict[str, dict[int, int]] = {}
    for size, name, k in sorted(pieces, key=lambda p: (-p[0], order[p[1]], p[2])):
        taken = placed.setdefault(name, {})
        free = set(range(topology.n_tasks))
        others = (free - set(taken.values())) if apart else free
        task = min(sorted(others), key=held.__getitem__)
        held[task] += size
        taken[k] = task
    whole = {name: taken[0] for name, taken in placed.items()}
    nodes = parameter_server.placed(step, whole, topology, params)
    partitions = {
        name: Partition(
            axis=axis, sizes=sizes, destinations=tuple(placed[name][k] for k in range(len(sizes)))
        )
        for name, (axis, sizes) in cuts.items()
    }
    return in_parts(nodes, step, partitions)


def in_parts(
    nodes: Iterable[PlanNode], step: StepSummary, partitions: Mapping[str, Partition]
) -> list[PlanNode]:
    """Nodes on servers with these variables in parts, and their slots of the same shape likewise."""
    owners = family(step, partitions)
    return [
        node.model_copy(update={"partition": partitions[owners[node.variable]], "destination": None})
        if node.variable in owners
        else node
        for node in nodes
    ]


def _collectives(step: StepSummary, topology: Topology, params: Params, cuts: Cuts) -> list[PlanNode]:
    """Whole variables in the buckets of `all-reduce`; each part of the others in one of its own."""
    nodes = all_reduce.bucketed(
        step.model_copy(update={"variables": tuple(v for v in step.variables if v.name not in cuts)}),
        topology,
        params,
    )
    whole = {node.variable: node for node in nodes}
    next_group = 1 + max((node.group for node in nodes if node.group is not None), default=-1)
    owners = family(step, cuts)
    ready = sorted((v for v in step.variables if v.name in cuts and not v.sparse), key=all_reduce.readiness)
    groups = {}
    for v in ready:
        n = len(cuts[v.name][1])
        groups[v.name] = tuple(range(next_group, next_group + n))
        next_group += n
    transport = all_reduce.transport_of(topology, params)
    made = []
    for v in step.variables:
        owner = owners.get(v.name)
        if owner is None:
            made.append(whole[v.name])
            continue
        axis, sizes = cuts[owner]
        node = whole[v.name] if v.name in whole else node_of(v, synchronizer="all-reduce")
        changes: dict[str, object] = {
            "partition": Partition(axis=axis, sizes=sizes, groups=groups.get(v.name))
        }
        if v.name in groups:
            changes["transport"] = transport
        made.append(node.model_copy(update=changes))
    return made
