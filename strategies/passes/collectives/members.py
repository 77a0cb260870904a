"""Members of the collectives of a step."""

from dataclasses import dataclass

from strategies.errors import StrategyError
from strategies.passes.collectives.keys import GROUP_KEY, LEADERS_KEY
from strategies.passes.task_plan import Between
from strategies.topology import Replica, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """The members of a step's collectives.

    Attributes:
        ranks: of the replicas that take part.
        group: how many they are, and the key of their group.
    """

    ranks: tuple[int, ...]
    group: tuple[int, int]

    @classmethod
    def of(cls, topology: Topology, between: Between) -> "Members":
        """Those between whom values are exchanged.

        Raises:
            StrategyError: there is one.
        """
        replicas = topology.replicas()
        ranks = tuple(r.rank for r in replicas if between == "replicas" or r.local == 0)
        if len(ranks) < 2:
            only = "replica" if between == "replicas" else "worker"
            raise StrategyError(
                f"all-reduce: a collective needs at least two members, got one {only}; raise workers or "
                "replicas, or use `single`"
            )
        key = GROUP_KEY if len(ranks) == len(replicas) else LEADERS_KEY
        return cls(ranks=ranks, group=(len(ranks), key))

    def local(self, topology: Topology, task: int) -> tuple[Replica, ...]:
        """Those of one task."""
        return tuple(r for r in topology.local_replicas(task) if r.rank in self.ranks)
