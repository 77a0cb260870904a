"""A node in its plan: what its variable is, what the nodes beside it say, and how it is refused."""

from dataclasses import dataclass
from typing import NoReturn

from strategies.errors import StrategyError
from strategies.plan.ownership import is_owned
from strategies.plan.schema import BY_RULE, PlanNode, VariableSummary
from strategies.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInPlan:
    """One node and what it must agree with.

    Attributes:
        where: begins the error line.
        owner: node of the variable whose slot this is.
        synchronizers: of all variables that cross replicas.
        names: of all variables.
    """

    where: str
    v: VariableSummary
    node: PlanNode
    owner: PlanNode | None
    synchronizers: frozenset[str]
    topology: Topology
    names: frozenset[str]

    @property
    def n_tasks(self) -> int:
        """How many tasks may serve."""
        return self.topology.n_tasks

    def fail(self, rule: str, got: object, way_out: str) -> NoReturn:
        """Refuse the node.

        Raises:
            StrategyError: always; one line with the variable, the rule, what was received and the way out.
        """
        raise StrategyError(f"{self.where}: variable {self.v.name!r}: {rule}, got {got}; {way_out}")

    @property
    def served(self) -> bool:
        """Whether it lives on a server: what replicas share does, where there are servers.

        Beside collectives, what no gradient or new state reaches may be either, a slot as its variable is; so
        may what no step changes.
        """
        if self.v.synced or "ps" not in self.synchronizers:
            return self.node.synchronizer == "ps"
        if self.v.rule == "per-replica":
            return False
        always = self.synchronizers == {"ps"} and not self.v.only_read
        return always or _is_served(self.owner or self.node)

    @property
    def reduced(self) -> bool:
        """Whether it takes part in collectives."""
        return self.v.synced and self.node.synchronizer not in ("ps", "none", "cross-replica-sum")

    @property
    def in_bucket(self) -> bool:
        """Whether it travels with others: all but rows that TensorFlow's collectives gather.

        Averages and new values from owners are dense whatever gradients are.
        """
        dense = not self.v.sparse or self.node.synchronizer == "average" or is_owned(self.node)
        by_rule = self.node.synchronizer in BY_RULE
        return self.reduced and not by_rule and (dense or self.node.transport == "tcp")


def _is_served(node: PlanNode) -> bool:
    return node.destination is not None or (
        node.partition is not None and node.partition.destinations is not None
    )
