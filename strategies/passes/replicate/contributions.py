"""Contributions of one task: sums over micro-batches and over replicas, and weights of its own mean."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from operator import attrgetter
from typing import ClassVar

from strategies.errors import StrategyError
from strategies.ir.graph import Node, no_op, producer
from strategies.ir.train_graph import Boundary, Contribution, TrainGraph
from strategies.numerics.combine import concat_rows, running_sums, weighted_sum
from strategies.passes.replicate.rewire import captured_name, contribute
from strategies.passes.replicate.step_copies import micro_batch_prefix, replica_prefix
from strategies.passes.task_plan import TaskPlan
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import Replica, Topology


@dataclass(frozen=True, kw_only=True, slots=True)
class Accumulate:
    """Run micro-batches one by one: each begins when the previous one is added to the replica's sums.

    Only the activations of one micro-batch are alive at a time, and one dense gradient in addition to the
    sum. Afterwards a replica has one weighted contribution per boundary, as without micro-batches.
    """

    name: ClassVar[str] = "accumulate"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        if topology.micro_batches == 1:
            return graph
        if graph.n_levels > 1:
            raise StrategyError(
                "accumulate: micro-batches share one gradient and update in a step, got "
                f"{graph.n_levels} in a row; leave it out"
            )
        turns = _turns(graph, self.plan.task, topology)
        sums: dict[str, list[Contribution]] = {}
        added: list[Node] = []
        for boundary in graph.boundaries:
            sums[boundary.values] = []
            for rank, own in groupby(boundary.contributions, attrgetter("rank")):
                nodes, contribution = _sum(boundary, tuple(own), turns[rank])
                added += nodes
                sums[boundary.values].append(contribution)
        begins = {}
        for turns_of_replica in turns.values():
            for turn, following in pairwise(turns_of_replica):
                done = turn.done()
                added.append(done)
                begins[following.prefix] = done.name
        waiting = graph.graph.with_nodes(_in_turn(graph, begins))
        firsts = {values: contributions[0] for values, contributions in sums.items()}
        rewired = contribute(replace(graph, graph=waiting), firsts, added)
        boundaries = (replace(b, contributions=tuple(sums[b.values])) for b in rewired.boundaries)
        return replace(rewired, boundaries=tuple(boundaries))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """One micro-batch of a replica.

    Attributes:
        ends: last nodes of the micro-batch.
    """

    replica: Replica
    prefix: str
    ends: list[str]

    def done(self) -> Node:
        return no_op(f"{self.prefix}done", dict.fromkeys(self.ends), self.replica.device)


def _turns(step: TrainGraph, task: int, topology: Topology) -> dict[int, list[_Turn]]:
    """Rank of a replica → its micro-batches, which end at least with their losses and their own state."""
    own_state: dict[str, list[str]] = {}
    for target in step.state_targets:
        own_state.setdefault(_prefix_of(target), []).append(target)
    turns: dict[int, list[_Turn]] = {}
    for shard, loss in zip(topology.local_shards(task), step.losses, strict=True):
        prefix = micro_batch_prefix(shard)
        ends = [producer(loss.tensor), *own_state.get(prefix, ())]
        turn = _Turn(replica=shard.replica, prefix=prefix, ends=ends)
        turns.setdefault(shard.replica.rank, []).append(turn)
    return turns


def _prefix_of(name: str) -> str:
    parts = name.split("/", 2)
    return "" if len(parts) < 3 else f"{parts[0]}/{parts[1]}/"


def _in_turn(step: TrainGraph, begins: Mapping[str, str]) -> Iterator[Node]:
    """All nodes; the first nodes of a micro-batch wait until the previous one is done.

    First nodes read nothing else of the micro-batch, except access nodes of variables, which sessions run at
    any time.

    Args:
        begins: prefix of a micro-batch → node that it waits for.
    """
    access = {n for v in step.variables for n in v.access}
    for node in step.graph.nodes:
        prefix = _prefix_of(node.name)
        if prefix in begins and node.name not in access:
            inputs = (producer(ref) for ref in node.inputs)
            if all(name in access or not name.startswith(prefix) for name in inputs):
                yield node.waiting_for(begins[prefix])
                continue
        yield node


def _sum(
    boundary: Boundary, parts: Sequence[Contribution], turns: Sequence[_Turn]
) -> tuple[tuple[Node, ...], Contribution]:
    replica = turns[0].replica
    weights = tuple(c.weight for c in parts)
    prefix = f"accumulate/{replica_prefix(replica.rank)}{captured_name(boundary)}/"
    specs = (TensorSpec(dtype=boundary.dtype),) * len(parts)
    values = [c.values for c in parts]
    if boundary.indices is None:
        snippet = trace(running_sums, specs, weights=weights)
        nodes, sums = snippet.splice(prefix, values, device=replica.device)
        for turn, ref in zip(turns, sums, strict=True):
            turn.ends.append(producer(ref))
        return nodes, Contribution(rank=replica.rank, values=sums[-1], indices=None, weight=1.0)
    assert boundary.index_dtype is not None
    ids = [c.indices for c in parts if c.indices is not None]
    for turn, refs in zip(turns, zip(values, ids, strict=True), strict=True):
        turn.ends.extend(map(producer, refs))
    snippet = trace(
        concat_rows, (*specs, *(TensorSpec(dtype=boundary.index_dtype),) * len(ids)), weights=weights
    )
    nodes, (rows, indices) = snippet.splice(prefix, [*values, *ids], device=replica.device)
    return nodes, Contribution(rank=replica.rank, values=rows, indices=indices, weight=1.0)


_MULTIPLIED = ("float", "double")
"""Types whose sum is multiplied by a weight; smaller types could overflow before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalReduce:
    """Scale contributions by their weights and add up those of one boundary.

    If replicas share their variables, the sum is computed on the task's host. If each replica owns a copy, a
    boundary has one contribution, which is scaled in place, or the leader's boundary has those of the whole
    task, which are added up. Sparse gradients are concatenated.

    If all contributions have the same weight, the workers' own transport multiplies the complete sum instead:
    it has the values in cache, whereas here each gradient would pass through memory once more.
    """

    name: ClassVar[str] = "local-reduce"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        combined: dict[str, Contribution] = {}
        added: list[Node] = []
        devices = {replica.rank: replica.device for replica in topology.local_replicas(self.plan.task)}
        host = topology.host_device(self.plan.task)
        all_alike = len({replica.examples for replica in topology.replicas()}) == 1
        for boundary in graph.boundaries:
            parts = boundary.contributions
            later = self._weight_for_later(boundary) if all_alike else 1.0
            if len(parts) <= 1 and all(c.weight == later for c in parts):
                continue
            device = host if boundary.rank is None else devices[boundary.rank]
            weights = tuple(c.weight / later for c in parts)
            nodes, one = _combine(boundary, weights, device)
            combined[boundary.values] = replace(one, weight=later)
            added += nodes
        return contribute(graph, combined, added) if combined else graph

    def _weight_for_later(self, boundary: Boundary) -> float:
        is_mean = boundary.rule == "mean" and boundary.indices is None and boundary.dtype in _MULTIPLIED
        is_weighed_later = is_mean and boundary.variable in self.plan.weighed_on_own_transport
        return boundary.contributions[0].weight if is_weighed_later and boundary.contributions else 1.0


def _combine(
    boundary: Boundary, weights: tuple[float, ...], device: str
) -> tuple[tuple[Node, ...], Contribution]:
    parts = boundary.contributions
    prefix = f"combine/{boundary.values}/"
    value_specs = (TensorSpec(dtype=boundary.dtype),) * len(parts)
    if boundary.indices is None:
        snippet = trace(weighted_sum, value_specs, weights=weights)
        nodes, (values,) = snippet.splice(prefix, [c.values for c in parts], device=device)
        return nodes, Contribution(rank=parts[0].rank, values=values, indices=None, weight=1.0)
    assert boundary.index_dtype is not None
    id_specs = (TensorSpec(dtype=boundary.index_dtype),) * len(parts)
    ids = [c.indices for c in parts if c.indices is not None]
    snippet = trace(concat_rows, (*value_specs, *id_specs), weights=weights)
    nodes, (values, indices) = snippet.splice(prefix, [*(c.values for c in parts), *ids], device=device)
    return nodes, Contribution(rank=parts[0].rank, values=values, indices=indices, weight=1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerMean:
    """Weight contributions by their share of the task's own examples instead of the global batch.

    Under a rule, only gradients are scaled; those of a summed loss too, so that each estimates the sum over
    all workers.
    """

    name: ClassVar[str] = "worker-mean"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        if topology.n_tasks == 1:
            return graph
        own = sum(replica.examples for replica in topology.local_replicas(self.plan.task))
        factor = topology.batch_size / own
        return replace(graph, boundaries=tuple(self._scaled(b, factor) for b in graph.boundaries))

    def _scaled(self, boundary: Boundary, factor: float) -> Boundary:
        by_rule = self.plan.aggregation is not None
        weighed = boundary.rule == "mean" or (by_rule and boundary.rule == "sum")
        if not weighed or (by_rule and boundary.role != "gradient"):
            return boundary
        parts = tuple(replace(c, weight=c.weight * factor) for c in boundary.contributions)
        return replace(boundary, contributions=parts)
