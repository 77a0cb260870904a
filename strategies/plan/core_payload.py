"""Payload of computations on cores: sums over replicas, and what it takes to keep variables in parts.

Of a sum of which every replica needs its part alone, each sends (N−1)/N of the buffer, and as much to have a
variable whole that lies in parts; where it lies whole, the sum takes both (Xu et al. 2020, Automatic
cross-replica sharding of weight update, arXiv:2004.13336). Emulated, parts are of one length, and past eleven
replicas TensorFlow's all-to-all does not serve, so that the whole sum goes around.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from strategies.ir.sizes import element_bytes, n_elements
from strategies.plan.schema import PlanNode, VariableSummary
from strategies.topology import Topology

MOST_IN_ALL_TO_ALL = 11
"""TensorFlow's all-to-all mixes up messages in a group of twelve members or more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorePayload:
    """Bytes of a variable that the replicas of a computation exchange in a step, all of it once.

    Attributes:
        summed: of what is summed whole.
        scattered: of what is summed in parts.
        gathered: of what is put together from parts, for reading and after loops.
    """

    summed: float
    scattered: float
    gathered: float

    @classmethod
    def of(
        cls, node: PlanNode, by_name: Mapping[str, VariableSummary], n_replicas: int, *, steps_per_loop: int
    ) -> "CorePayload":
        """What a variable takes; a loop puts it together once, which its steps share.

        Args:
            by_name: all variables of the step.
        """
        variable = by_name[node.variable]
        updated = variable if variable.slot_of is None else by_name[variable.slot_of]
        is_summed = node.synchronizer == "cross-replica-sum"
        if not node.in_parts:
            return cls(summed=node.bytes * variable.crossings * is_summed, scattered=0, gathered=0)
        padded = -(-n_elements(node.shape) // n_replicas) * n_replicas * element_bytes(node.dtype)
        # An update of rows takes the variable and its slots whole, one that is not by elements the gradient.
        by_rows = updated.sparse
        is_whole = by_rows or not by_elements(updated) or n_replicas > MOST_IN_ALL_TO_ALL
        n_reads = 1 if by_rows else max(variable.reads, 1) if variable.kind == "trainable" else 0
        return cls(
            summed=node.bytes * variable.crossings * (is_summed and is_whole),
            scattered=padded * variable.crossings * (is_summed and not is_whole),
            gathered=padded * (n_reads + 1 / steps_per_loop),
        )

    def add_to(self, sent: list[list[float]], topology: Topology) -> None:
        """Add what tasks send each other: sums and gathers go around a ring, parts straight to owners."""
        n, n_tasks = topology.n_replicas, topology.n_tasks
        around = 2 * (n - 1) / n * self.summed + (n - 1) / n * self.gathered
        for task in range(n_tasks if n_tasks > 1 else 0):
            sent[task][(task + 1) % n_tasks] += around
            for other in range(n_tasks):
                if other != task:
                    pairs = len(topology.local_replicas(task)) * len(topology.local_replicas(other))
                    sent[task][other] += pairs * self.scattered / n


def by_elements(v: VariableSummary) -> bool:
    """Whether each element's update needs that element of the gradient alone.

    No part along any axis may need another one, as norms of a gradient and means along its rows do.
    """
    is_apart = v.kind != "trainable" or {axis for axis, n in enumerate(v.shape) if n > 1} <= set(v.apart_axes)
    return is_apart and not v.gradient_shared
