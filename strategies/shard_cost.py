"""Payload of shares: what replicas send when each updates a part of the variables for all.

In a reduce-scatter and in an all-gather each member sends (N−1)/N of the buffer (Xu et al. 2020, Automatic
cross-replica sharding of weight update, arXiv:2004.13336), and more where shares are not equally large, since
a collective carries tensors of one length.
"""

from collections import Counter
from dataclasses import dataclass, field

from strategies.plan import PlanNode
from strategies.topology import Topology

Bucket = tuple[int | None, str]


@dataclass(frozen=True, slots=True)
class Shards:
    """Bytes that each replica owns of each bucket: of gradients that go to owners, and of new values.

    A bucket is a group of the plan and a type.
    """

    gradients: dict[Bucket, Counter[int]] = field(default_factory=dict)
    values: dict[Bucket, Counter[int]] = field(default_factory=dict)

    @staticmethod
    def scatters(node: PlanNode) -> bool:
        """Whether a variable's owner alone gets the sum of its gradient."""
        return node.owner is not None and not node.sparse and not node.whole_gradient

    def add(self, node: PlanNode) -> None:
        """Count a variable or part if it has an owner."""
        if node.owner is None:
            return
        bucket = node.group, node.dtype
        self.values.setdefault(bucket, Counter())[node.owner] += node.bytes
        if self.scatters(node):
            self.gradients.setdefault(bucket, Counter())[node.owner] += node.bytes

    def send(self, sent: list[list[float]], topology: Topology) -> None:
        """Add what tasks send each other in all exchanges.

        Two replicas exchange gradients in the length of the larger of their shares; new values go around a
        ring in the length of the largest share.
        """
        replicas = topology.replicas()
        for shares in self.gradients.values():
            for one in replicas:
                for other in replicas:
                    if one.task != other.task:
                        sent[one.task][other.task] += max(shares[one.rank], shares[other.rank])
        n_tasks = topology.n_tasks
        for shares in self.values.values():
            crossing = (topology.n_replicas - 1) * max(shares.values())
            for task in range(n_tasks if n_tasks > 1 else 0):
                sent[task][(task + 1) % n_tasks] += crossing
