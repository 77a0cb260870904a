"""One copy of the step per replica of a task, and one of forward and backward per shard."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.ir.graph import Graph, Node
from strategies.ir.random_ops import reseed
from strategies.ir.side_effects import without_visible_ops
from strategies.ir.train_graph import BatchInput, TrainGraph
from strategies.numerics.combine import split_examples
from strategies.passes.replicate.broadcast_update_values import marked
from strategies.passes.replicate.step_copies import Owners, StepCopies
from strategies.passes.task_plan import TaskPlan
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import Shard, Topology


def split_node(placeholder: str) -> str:
    """Name of the node that splits a placeholder's batch, if there are several shards."""
    return f"split/{placeholder}/split"


def split_batch(
    batch: Sequence[BatchInput], shards: Sequence[Shard], device: str
) -> tuple[list[Node], dict[int, dict[str, str]]]:
    """Make nodes that split the fed batch along axis 0.

    Args:
        device: device to which the batch is fed.
    Returns:
        Nodes, and for each rank: placeholder → tensor reference of its shard.
    """
    if len(shards) == 1:
        return [], {shards[0].rank: {b.node: b.node for b in batch}}
    nodes: list[Node] = []
    fed: dict[int, dict[str, str]] = {shard.rank: {} for shard in shards}
    sizes = tuple(shard.examples for shard in shards)
    for b in batch:
        snippet = trace(split_examples, (TensorSpec(dtype=b.dtype),), sizes=sizes)
        added, refs = snippet.splice(split_node(b.node).removesuffix("split"), [b.node], device=device)
        nodes += added
        for shard, ref in zip(shards, refs, strict=True):
            fed[shard.rank][b.node] = ref
    return nodes, fed


@dataclass(frozen=True, kw_only=True, slots=True)
class Replicate:
    """Copy the step for every replica of this task, on the replica's device and with the rank's random state.

    A replica with micro-batches has one copy of forward, backward and random state for each of them, which
    share nodes with equal values. Afterwards a boundary lists the contributions of all shards, and returns
    the first local one until a later pass replaces it by the sum of all.

    Replicas share one copy of a variable that has a server, and its update; they own and update all other
    variables. Forward, backward and random state are always copied.
    """

    name: ClassVar[str] = "replicate"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        shards = topology.local_shards(self.plan.task)
        nodes, fed = split_batch(graph.batch, shards, topology.host_device(self.plan.task))
        batch = {b.node for b in graph.batch}
        shared = frozenset(self.plan.destinations)
        owners = Owners.of(graph, shared=shared, micro_batches=topology.micro_batches)
        copied = owners.copied()
        between = marked(graph, copied)
        copies = StepCopies.of(graph, owners, shards, fed, between.refs)
        nodes = [*(n for n in graph.graph.nodes if n.name in batch), *nodes]
        functions = dict(graph.graph.functions)
        unseen = without_visible_ops(graph.graph)
        originals, quiet = (
            side.with_nodes(n for n in side.nodes if n.name in copied) for side in (graph.graph, unseen)
        )
        for shard in shards:
            seeded = reseed(originals if shard.rank == 0 else quiet, shard.rank)
            functions.update(seeded.functions)
            nodes += copies.own(seeded.nodes, shard)
        once = graph.graph if shards[0].rank == 0 else unseen
        nodes += [*copies.shared(once.nodes, batch | copied), *between.nodes]
        replicated = Graph(nodes=tuple(nodes), functions=functions, extra=graph.graph.extra)
        return replace(copies.describe(replicated, topology), update_values=between.update_values)
