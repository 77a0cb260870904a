"""Joint statistics of the reference: what shards share of a batch, combined with NumPy, level by level."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from harness.equivalence.yardstick import Array
from harness.worker.verify.rounding import RoundedSums, shares
from strategies.ir.train_graph import Statistic, TrainGraph
from strategies.topology import Shard

Fetch: TypeAlias = Callable[[Shard, Sequence[str], Mapping[str, Array]], Sequence[Array]]
"""From a shard, tensors and what it is fed with beside its examples to their values."""


class JointStatistics:
    """Statistics that all shards of a step take together; each level needs those before it."""

    def __init__(self, step: TrainGraph, statistics: Sequence[Statistic]) -> None:
        self._step = step
        self._statistics = statistics
        is_sum = step.losses[0].reduction == "sum"
        self._summed = {s.node for s in statistics if s.backward and is_sum}

    def of_batch(self, shards: Sequence[Shard], fetch: Fetch, sums: RoundedSums) -> dict[str, Array]:
        """Statistics of a global batch by node.

        What comes back to one is that with respect to the batch's statistic, in the scale of its loss.

        Args:
            shards: of the batch.
        """
        weights = shares(shards)
        by_name = self._step.graph.by_name
        joint: dict[str, Array] = {}
        for level in sorted({s.level for s in self._statistics}):
            nodes = [s.node for s in self._statistics if s.level == level]
            refs = [by_name[n].inputs[0] for n in nodes]
            own = [
                fetch(shard, refs, self.of_shard(weight, joint))
                for shard, weight in zip(shards, weights, strict=True)
            ]
            joint |= {
                node: sums.of_all(
                    [values[k] for values in own], shards, "sum" if node in self._summed else "mean"
                )
                for k, node in enumerate(nodes)
            }
        return joint

    def of_shard(self, share: float, joint: Mapping[str, Array]) -> dict[str, Array]:
        """Statistics in the scale of the loss of a shard, which counts its share in a mean and 1 in a sum.

        Args:
            share: what part of the batch's examples the shard has.
        """
        return {name: value * share if name in self._summed else value for name, value in joint.items()}
