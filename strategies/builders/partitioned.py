"""Partitioned variables: the axis and number of parts, and the server or bucket of each part."""

import random
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import groupby
from typing import TypeAlias

from strategies.builders import all_reduce, parameter_server
from strategies.errors import first_few
from strategies.params import Param, Params
from strategies.plan.schema import Partition, PlanNode, StepSummary, VariableSummary
from strategies.plan.strategy import Choice, Choices, Layout, node_of
from strategies.topology import Topology

Cuts: TypeAlias = Mapping[str, tuple[int, tuple[int, ...]]]
"""Variable → axis and sizes of its parts."""


def on_servers(choices: Choices, *, apart: bool = False) -> Layout:
    """Layout in which servers hold the chosen parts.

    Args:
        apart: True puts the parts of a variable on different servers, if there are enough servers.
    """

    def layout(step: StepSummary, topology: Topology, params: Params) -> list[PlanNode]:
        return _servers(step, topology, params, _cuts(choices(step, topology, params)), apart=apart)

    return layout


def by_collectives(choices: Choices) -> Layout:
    """Layout in which every chosen part is reduced on its own."""

    def layout(step: StepSummary, topology: Topology, params: Params) -> list[PlanNode]:
        return _collectives(step, topology, params, _cuts(choices(step, topology, params)))

    return layout


def _cuts(choices: Mapping[str, Choice]) -> Cuts:
    """Cuts of the partitioned variables."""
    return {name: choice for name, choice in choices.items() if not isinstance(choice, str)}


def family(step: StepSummary, cuts: Container[str]) -> dict[str, str]:
    """Variable or slot → the variable that determines its cut."""
    shapes = {v.name: v.shape for v in step.variables}
    return {
        v.name: owner
        for v in step.variables
        if (owner := v.slot_of or v.name) in cuts and v.shape == shapes[owner]
    }


def _servers(
    step: StepSummary, topology: Topology, params: Params, cuts: Cuts, *, apart: bool = False
) -> list[PlanNode]:
    """Place parts and whole variables together: the largest first, on the least loaded server.

    Args:
        apart: True puts the parts of a variable on different servers, if there are enough servers.
    """
    n_bytes: dict[str, int] = {}
    for v in step.variables:
        n_bytes[v.slot_of or v.name] = n_bytes.get(v.slot_of or v.name, 0) + v.bytes
    pieces = [
        (n_bytes[v.name] * size // length, v.name, n)
        for v in step.variables
        if v.synced
        for size, length, n in alike_sizes(v, cuts)
    ]
    loads = [(0, task) for task in range(topology.n_tasks)]
    placed: dict[str, list[int]] = {}
    for size, name, n in sorted(pieces, key=lambda piece: -piece[0]):
        own_tasks = placed.setdefault(name, [])
        if apart:
            own_tasks += _least_loaded(loads, size, n, without=set(own_tasks))
        else:
            own_tasks += [task for _ in range(n) for task in _least_loaded(loads, size, 1)]
    whole = {name: own_tasks[0] for name, own_tasks in placed.items()}
    nodes = parameter_server.placed(step, whole, topology, params)
    partitions = {
        name: Partition(axis=axis, sizes=sizes, destinations=tuple(placed[name]))
        for name, (axis, sizes) in cuts.items()
    }
    return in_parts(nodes, step, partitions)


def alike_sizes(v: VariableSummary, cuts: Cuts) -> list[tuple[int, int, int]]:
    """Size of parts, length of their axis, and number of such parts, for each size in turn."""
    if v.name not in cuts:
        return [(1, 1, 1)]
    _, sizes = cuts[v.name]
    length = sum(sizes)
    return [(size, length, len(list(parts))) for size, parts in groupby(sizes)]


def _least_loaded(
    loads: list[tuple[int, int]], n_bytes: int, n: int, *, without: Container[int] = ()
) -> list[int]:
    """Give pieces of so many bytes to n tasks, each to the one with the fewest bytes of those that are left.

    Args:
        loads: heap of bytes and task.
        without: tasks that get none.
    """
    chosen: list[tuple[int, int]] = []
    passed_over: list[tuple[int, int]] = []
    while len(chosen) < n:
        least = heappop(loads)
        (passed_over if least[1] in without else chosen).append(least)
    for load in (*passed_over, *((task_bytes + n_bytes, task) for task_bytes, task in chosen)):
        heappush(loads, load)
    return [task for _, task in chosen]


def in_parts(
    nodes: Iterable[PlanNode], step: StepSummary, partitions: Mapping[str, Partition]
) -> list[PlanNode]:
    """Return the nodes with these variables in parts on servers, and with their slots of the same shape."""
    owners = family(step, partitions)
    return [
        node.model_copy(update={"partition": partitions[owners[node.variable]], "destination": None})
        if node.variable in owners
        else node
        for node in nodes
    ]


def _collectives(step: StepSummary, topology: Topology, params: Params, cuts: Cuts) -> list[PlanNode]:
    """Whole variables in the buckets of `all-reduce`; every part of the others in its own bucket."""
    nodes = all_reduce.bucketed(
        step.model_copy(update={"variables": tuple(v for v in step.variables if v.name not in cuts)}),
        topology,
        params,
    )
    whole = {node.variable: node for node in nodes}
    next_group = 1 + max((node.group for node in nodes if node.group is not None), default=-1)
    owners = family(step, cuts)
    transport = all_reduce.transport_of(topology, params)
    cut = (v for v in step.variables if v.name in cuts and (transport == "tcp" or not v.sparse))
    ready = sorted(cut, key=all_reduce.readiness)
    groups = {}
    for v in ready:
        n = len(cuts[v.name][1])
        groups[v.name] = tuple(range(next_group, next_group + n))
        next_group += n
    plan_nodes = []
    for v in step.variables:
        owner = owners.get(v.name)
        if owner is None:
            plan_nodes.append(whole[v.name])
            continue
        axis, sizes = cuts[owner]
        node = whole[v.name] if v.name in whole else node_of(v, synchronizer="all-reduce")
        changes: dict[str, object] = {
            "partition": Partition(axis=axis, sizes=sizes, groups=groups.get(v.name))
        }
        if v.name in groups:
            changes["transport"] = transport
        plan_nodes.append(node.model_copy(update=changes))
    return plan_nodes


MAX_SHARDS = Param(
    name="max_shards",
    type=int,
    default=16,
    minimum=2,
    tunable=(2, 4, 16, 64),
    unit="parts",
    summary="Most parts of a variable; one that needs more stays whole.",
)
SERVER_PARTS = replace(MAX_SHARDS, default=6, summary="Most parts of a variable.")
MIN_BYTES = Param(
    name="min_bytes",
    type=int,
    default=16384,
    minimum=1,
    tunable=(1 << 10, 1 << 14, 1 << 18),
    unit="bytes",
    summary="Smaller variables stay whole.",
)
SEED = Param(name="seed", type=int, default=0, minimum=0, summary="Random seed of the chosen axes.")
CUTTING = frozenset({MAX_SHARDS.name, MIN_BYTES.name})
"""Knobs of strategies that cut all variables that can be cut."""


def smallest_divisor(length: int) -> int | None:
    """The smallest number ≥ 2 that divides a length; None for lengths below 2."""
    if length < 2:
        return None
    return next((n for n in range(2, int(length**0.5) + 1) if length % n == 0), length)


def smallest_non_divisor(length: int) -> int | None:
    """Smallest number ≥ 2 and ≤ length that does not divide the length; None if there is none."""
    return next((n for n in range(2, length + 1) if length % n), None)


def near_equal(length: int, n: int) -> tuple[int, ...]:
    """Sizes of n parts that differ by one at most, the longer ones first."""
    share, longer = divmod(length, n)
    return tuple(share + (k < longer) for k in range(n))


def by_smallest_divisor(step: StepSummary, topology: Topology, params: Params) -> dict[str, Choice]:  # noqa: ARG001 - a Choices
    """Cut axis 0 into n equal parts, n the smallest divisor of its length."""
    return _choices(step, smallest_divisor, params, _axis_0)


def by_smallest_non_divisor(
    step: StepSummary,
    topology: Topology,  # noqa: ARG001 - a Choices
    params: Params,
) -> dict[str, Choice]:
    """Cut axis 0 into n parts, n the smallest number that does not divide its length."""
    return _choices(step, smallest_non_divisor, params, _axis_0)


def by_servers(step: StepSummary, topology: Topology, params: Params) -> dict[str, Choice]:
    """Cut axis 0 of every large variable into one part per server, `max_shards` at most.

    A variable with fewer rows stays whole.
    """
    n_servers = min(topology.n_tasks, int(params[SERVER_PARTS.name] or 0))
    least = int(params[MIN_BYTES.name] or 0)

    def axis(v: VariableSummary) -> int | str:
        return _axis_0(v) if v.bytes >= least else f"smaller than min_bytes={least}"

    return _choices(step, lambda length: n_servers if 1 < n_servers <= length else None, {}, axis)


def along_random_axis(step: StepSummary, topology: Topology, params: Params) -> dict[str, Choice]:  # noqa: ARG001 - a Choices
    """Cut a seeded random axis of length > 1, axis 0 for a sparse gradient, by its smallest divisor."""
    draw = random.Random(int(params[SEED.name] or 0))  # noqa: S311 - any sequence that a seed repeats

    def drawn(v: VariableSummary) -> int | str:
        axes = [a for a in v.partitionable_axes if v.shape[a] > 1]
        return draw.choice(axes) if axes else next(iter(v.cut_refusals.values()), _too_short(v))

    return _choices(step, smallest_divisor, params, drawn)


def nothing_cut(choices: Mapping[str, Choice], whole: str) -> str:
    """Sentence that explains why every variable stays whole and what to choose instead.

    Args:
        choices: choices for a plan without parts; a choice that would cut a variable was edited away.
        whole: name of the strategy that keeps variables whole.
    """
    by_reason: dict[str, list[str]] = {}
    for name, choice in choices.items():
        reason = choice if isinstance(choice, str) else "the plan was edited so"
        by_reason.setdefault(reason, []).append(repr(name))
    reasons = first_few([f"{first_few(names)} ({reason})" for reason, names in by_reason.items()])
    return f"nothing is partitioned, every variable stays whole as under {whole}: {reasons}; choose {whole}"


def kept_whole(step: StepSummary, nodes: Sequence[PlanNode]) -> list[str]:
    """Notes on variables that stay whole because of their updates."""
    cut = {node.variable for node in nodes if node.partition is not None}
    whole = [
        f"{v.name!r} ({next(iter(v.cut_refusals.values()))})"
        for v in step.variables
        if v.kind == "trainable" and v.synced and v.cut_refusals and v.name not in cut
    ]
    return [f"kept whole, since their updates cannot be cut: {first_few(whole)}"] if whole else []


def fewer_parts(
    _step: StepSummary, nodes: Sequence[PlanNode], topology: Topology, params: Params
) -> list[str]:
    """Note on variables that could be spread over more servers."""
    most = int(params[SERVER_PARTS.name] or 0)
    if most >= topology.n_tasks or not any(node.partition for node in nodes):
        return []
    where = f"each variable is on {most} of {topology.n_tasks} servers at most"
    reason = "each part costs every worker two messages in a step and nodes of its graph"
    return [f"{where}, because {reason}; raise max_shards to spread variables over more"]


def _axis_0(v: VariableSummary) -> int | str:
    return 0 if 0 in v.partitionable_axes else v.cut_refusals.get(0, _too_short(v))


def _too_short(v: VariableSummary) -> str:
    """Reason why a variable cannot be cut, whatever its update is."""
    return f"shape {list(v.shape)} has no such axis longer than 1" if v.shape else "a scalar has no axis"


def _choices(
    step: StepSummary,
    n_parts: Callable[[int], int | None],
    params: Params,
    axis_of: Callable[[VariableSummary], int | str],
) -> dict[str, Choice]:
    """Cut of each trainable variable, or the reason why it stays whole; `max_shards` limits the parts."""
    most = params.get(MAX_SHARDS.name)
    choices: dict[str, Choice] = {}
    for v in step.variables:
        if v.kind != "trainable" or not v.synced:
            continue
        axis = axis_of(v)
        if isinstance(axis, str):
            choices[v.name] = axis
            continue
        length = v.shape[axis]
        n = n_parts(length)
        if n is None:
            choices[v.name] = f"no number of parts suits its length of {length} along axis {axis}"
        elif most is not None and n > int(most):
            choices[v.name] = f"{n} parts of its length of {length} are more than max_shards={most}"
        else:
            choices[v.name] = (axis, near_equal(length, n))
    return choices
