"""Micro-batches in turn: one of a replica's at a time, and what they contribute added up as it comes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from operator import attrgetter
from typing import ClassVar

from strategies.errors import StrategyError
from strategies.ir.graph import Node, producer
from strategies.ir.train_graph import Boundary, Contribution, TrainGraph
from strategies.numerics.combine import concat_rows, running_sums
from strategies.passes.replicate.rewire import captured_name, contribute
from strategies.passes.replicate.step_copies import micro_batch_prefix, replica_prefix
from strategies.passes.task_plan import TaskPlan
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import Replica, Topology


@dataclass(frozen=True, kw_only=True, slots=True)
class Accumulate:
    """Let each micro-batch of a replica begin when the one before has been added to the replica's sums.

    So the activations of one micro-batch live at a time, and of dense gradients one besides the sum.
    Afterwards a replica brings one contribution to a boundary, weighted already, as without micro-batches.
    """

    name: ClassVar[str] = "accumulate"
    task: int

    @classmethod
    def of(cls, plan: TaskPlan) -> "Accumulate | None":
        """Where replicas take micro-batches."""
        return cls(task=plan.task) if plan.execution.micro_batches > 1 else None

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        """The step whose replicas take their micro-batches in turn; the same if each takes all at once."""
        if topology.micro_batches == 1:
            return graph
        if graph.n_levels > 1:
            raise StrategyError(
                "accumulate: micro-batches share one gradient and update in a step, got "
                f"{graph.n_levels} in a row; leave it out"
            )
        turns = _turns(graph, self.task, topology)
        sums: dict[str, list[Contribution]] = {}
        added: list[Node] = []
        for boundary in graph.boundaries:
            sums[boundary.values] = []
            for rank, own in groupby(boundary.contributions, attrgetter("rank")):
                nodes, contribution = _sum(boundary, tuple(own), turns[rank])
                added += nodes
                sums[boundary.values].append(contribution)
        begins = {}
        for mates in turns.values():
            for turn, following in pairwise(mates):
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
        prefix: what the names of its nodes start with.
        ends: nodes after which nothing is left to do for it.
    """

    replica: Replica
    prefix: str
    ends: list[str]

    def done(self) -> Node:
        """A node that runs when the turn is over."""
        waits = tuple(f"^{name}" for name in dict.fromkeys(self.ends))
        return Node(name=f"{self.prefix}done", op="NoOp", inputs=waits, device=self.replica.device)


def _turns(step: TrainGraph, task: int, topology: Topology) -> dict[int, list[_Turn]]:
    """Rank of a replica → its micro-batches, which end with their losses and their own state at least."""
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
    """The prefix of a micro-batch that a name may have."""
    parts = name.split("/", 2)
    return "" if len(parts) < 3 else f"{parts[0]}/{parts[1]}/"


def _in_turn(step: TrainGraph, begins: Mapping[str, str]) -> Iterator[Node]:
    """The nodes, of which those that begin a micro-batch wait until the one before it is done.

    Those begin it that take nothing from others of it, variables apart: sessions reach these at any time.

    Args:
        begins: prefix of a micro-batch → what it waits for.
    """
    access = {n for v in step.variables for n in v.access}
    for node in step.graph.nodes:
        prefix = _prefix_of(node.name)
        if prefix in begins and node.name not in access:
            inputs = (producer(ref) for ref in node.inputs)
            if all(name in access or not name.startswith(prefix) for name in inputs):
                yield replace(node, inputs=(*node.inputs, f"^{begins[prefix]}"))
                continue
        yield node


def _sum(
    boundary: Boundary, parts: Sequence[Contribution], turns: Sequence[_Turn]
) -> tuple[tuple[Node, ...], Contribution]:
    """What a replica's micro-batches contribute together; they end when it has been taken in."""
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
