"""Partitioned variables on servers and under collectives: where their parts go, and their slots with them."""

from collections.abc import Container, Iterable, Mapping
from typing import TypeAlias

from strategies.builders import all_reduce, parameter_server
from strategies.plan.schema import Partition, PlanNode, StepSummary
from strategies.plan.strategy import Choice, Choices, Layout, Params, node_of
from strategies.topology import Topology

Cuts: TypeAlias = Mapping[str, tuple[int, tuple[int, ...]]]
"""Variable → axis and sizes of its parts."""


def on_servers(choices: Choices, *, apart: bool = False) -> Layout:
    """Servers hold the parts that are chosen.

    Args:
        apart: no two parts of a variable on one server, where there are as many.
    """

    def layout(step: StepSummary, topology: Topology, params: Params) -> list[PlanNode]:
        return _servers(step, topology, params, _cuts(choices(step, topology, params)), apart=apart)

    return layout


def by_collectives(choices: Choices) -> Layout:
    """Each part that is chosen is reduced by itself."""

    def layout(step: StepSummary, topology: Topology, params: Params) -> list[PlanNode]:
        return _collectives(step, topology, params, _cuts(choices(step, topology, params)))

    return layout


def _cuts(choices: Mapping[str, Choice]) -> Cuts:
    """The variables that are cut."""
    return {name: choice for name, choice in choices.items() if not isinstance(choice, str)}


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
