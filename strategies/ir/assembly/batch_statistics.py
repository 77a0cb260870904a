"""Means over examples in a step, and which of them can become those of a larger batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strategies.ir.assembly.levels import levels_of
from strategies.ir.assembly.traced import TracedStatistic
from strategies.ir.graph import DType, Graph
from strategies.ir.replicas.seeds import reseed
from strategies.ir.train_graph import Statistic
from strategies.ir.traversal import descendants


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """The statistics of a step, and layer → why its own can be those of a shard only."""

    marked: tuple[Statistic, ...]
    own: Mapping[str, str]


def statistics_of(
    graph: Graph, traced: Sequence[TracedStatistic], own: Mapping[str, str], forward: Sequence[str]
) -> Statistics:
    """What a graph has of the statistics that were traced.

    Args:
        own: layers of which it is known already.
        forward: nodes of the loss, and of new forward state.
    """
    alive = [t for t in traced if t.node in graph.by_name]
    if not alive:
        return Statistics(marked=(), own=dict(own))
    levels = levels_of(graph, {t.node for t in alive})
    marked = []
    for t in alive:
        dtype = graph.by_name[t.node].attrs["T"]
        assert isinstance(dtype, DType)
        level = levels[t.node]
        statistic = Statistic(
            layer=t.layer, node=t.node, dtype=dtype, shape=t.shape, level=level, backward=t.backward
        )
        marked.append(statistic)
    return Statistics(marked=tuple(marked), own={**_obstacles(graph, alive, forward), **own})


def _obstacles(graph: Graph, traced: Sequence[TracedStatistic], forward: Sequence[str]) -> dict[str, str]:
    """Layer → why its statistics cannot be those of all shards, for the layers where that is so."""
    if reseed(graph, 1) is not graph:
        # The reference takes a shard's forward pass in parts, from its beginning each time.
        reason = "is in a step with random operations that nobody can repeat; draw with keras.random instead"
        return {t.layer: reason for t in traced}
    # A gradient that leads to the loss is not that of a mean over the batch, and would be weighed otherwise.
    heads = {*forward, *(t.node for t in traced if not t.backward)}

    def leads_on(*marks: TracedStatistic) -> bool:
        return not heads.isdisjoint(descendants(graph, [t.node for t in marks], control=False))

    backward = [t for t in traced if t.backward]
    # Next to no step needs the walk for each.
    wrong = [t for t in backward if leads_on(t)] if leads_on(*backward) else []
    return {t.layer: "is differentiated within the loss; take gradients of the loss only" for t in wrong}
