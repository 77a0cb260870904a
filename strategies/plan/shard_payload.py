"""Payload of shares: what replicas send when each updates a part of the variables for all.

In a reduce-scatter and in an all-gather each member sends (N−1)/N of the buffer (Xu et al. 2020, Automatic
cross-replica sharding of weight update, arXiv:2004.13336; for values gathered before they are read,
Rajbhandari et al. 2020, ZeRO, arXiv:1910.02054), and more where shares are not equally large and TensorFlow's
collectives carry them, which take tensors of one length.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from strategies.plan.schema import PlanNode, VariableSummary
from strategies.topology import Topology

Bucket = tuple[int | None, str, bool]
ValueBucket = tuple[bool, Bucket]


@dataclass(frozen=True, slots=True)
class Shards:
    """Bytes that each replica owns of each bucket: of gradients that go to owners, and of values.

    A bucket is a group of the plan, a type, and whether the workers' own ring carries it. Values that travel
    before they are read travel apart from those that do once they are new.
    """

    gradients: dict[Bucket, Counter[int]] = field(default_factory=dict)
    values: dict[ValueBucket, Counter[int]] = field(default_factory=dict)

    @staticmethod
    def scatters(node: PlanNode) -> bool:
        """Whether a variable's owner alone gets the sum of its gradient."""
        return node.owner is not None and not node.sparse and not node.whole_gradient

    def add(self, node: PlanNode, variable: VariableSummary) -> None:
        """Count a variable, or a part of it, if it has an owner."""
        if node.owner is None:
            return
        bucket = node.group, node.dtype, node.transport == "tcp"
        n_times = 1 if node.gathered else variable.updates
        self.values.setdefault((node.gathered, bucket), Counter())[node.owner] += node.bytes * n_times
        if self.scatters(node):
            self.gradients.setdefault(bucket, Counter())[node.owner] += node.bytes * variable.crossings

    def send(self, sent: list[list[float]], topology: Topology) -> None:
        """Add what tasks send each other in all exchanges.

        Of TensorFlow's, two replicas exchange gradients in the length of the larger of their shares, and
        values go around a ring in the length of the largest. The workers' own ring sums a worker's replicas
        first and carries shares as long as they are.
        """
        for (*_, in_ring), shares in self.gradients.items():
            if in_ring:
                # A worker's own share stays when it comes.
                around(sent, _by_task(shares, topology), stays=0)
            else:
                _between_replicas(sent, shares, topology)
        for (_, (*_, in_ring)), shares in self.values.items():
            if in_ring:
                # The share of the next worker comes last and stays.
                around(sent, _by_task(shares, topology), stays=1)
            else:
                longest = (topology.n_replicas - 1) * max(shares.values())
                for task in range(topology.n_tasks if topology.n_tasks > 1 else 0):
                    sent[task][(task + 1) % topology.n_tasks] += longest


def around(sent: list[list[float]], shares: Sequence[float], *, stays: int) -> None:
    """Each worker passes on all workers' shares but one.

    Args:
        shares: bytes by task.
        stays: how many places further in the ring the worker is whose share is passed on no more.
    """
    n = len(shares)
    for task in range(n if n > 1 else 0):
        sent[task][(task + 1) % n] += sum(shares) - shares[(task + stays) % n]


def _by_task(shares: Counter[int], topology: Topology) -> list[int]:
    return [
        sum(shares[replica.rank] for replica in topology.local_replicas(task))
        for task in range(topology.n_tasks)
    ]


def _between_replicas(sent: list[list[float]], shares: Counter[int], topology: Topology) -> None:
    replicas = topology.replicas()
    for one in replicas:
        for other in replicas:
            if one.task != other.task:
                sent[one.task][other.task] += max(shares[one.rank], shares[other.rank])
