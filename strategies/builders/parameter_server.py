"""Parameter servers: the task that holds each variable, and the synchronisation of workers."""

from collections.abc import Mapping, Sequence
from heapq import heapreplace

from strategies.builders.shared_params import KNOBS, first_set
from strategies.errors import StrategyError
from strategies.params import Param, Params
from strategies.plan.execution import Execution
from strategies.plan.schema import PlanNode, StepSummary, VariableSummary
from strategies.plan.strategy import node_of
from strategies.topology import Topology

PROXY = Param(
    name="local_proxy_variable",
    type=bool,
    default=False,
    tunable=(False, True),
    summary="Read each dense variable once per worker and step, for all its replicas.",
)
SYNC = Param(
    name="sync",
    type=bool,
    default=True,
    summary="false: apply each worker's gradients at once (asynchronous training).",
)
STALENESS = Param(
    name="staleness",
    type=int,
    default=0,
    minimum=0,
    unit="steps",
    summary="Steps that a worker may be ahead of the slowest.",
)
BACKUP = Param(
    name="backup",
    type=int,
    default=0,
    minimum=0,
    unit="workers",
    summary="Slowest workers whose gradients a step drops.",
)
PARAMS = (PROXY, SYNC, STALENESS, BACKUP, *KNOBS)


def one_server(step: StepSummary, topology: Topology, params: Params) -> list[PlanNode]:
    """All variables on task 0."""
    return placed(step, {v.name: 0 for v in step.variables}, topology, params)


def load_balancing(step: StepSummary, topology: Topology, params: Params) -> list[PlanNode]:
    """Place each synchronised variable in turn on the task that holds the fewest bytes so far."""
    loads = [(0, task) for task in range(topology.n_tasks)]
    destinations: dict[str, int] = {}
    for variable in step.variables:
        if variable.synced:
            n_bytes, task = loads[0]
            destinations[variable.name] = task
            heapreplace(loads, (n_bytes + variable.bytes, task))
    return placed(step, destinations, topology, params)


def placed(
    step: StepSummary, destinations: Mapping[str, int], topology: Topology, params: Params
) -> list[PlanNode]:
    """Place the synchronised variables on their servers.

    Slots are placed with their variable, and values shared by updates on task 0. Random state stays with its
    replica, and every replica has a copy of variables that no step changes.
    """
    check_backup(params, topology)

    def node(v: VariableSummary) -> PlanNode:
        own = v.rule == "per-replica" or v.only_read
        return node_of(
            v,
            destination=None if own else destinations.get(v.slot_of or v.name, 0),
            synchronizer="ps" if v.synced else "none",
            proxy=bool(params.get(PROXY.name)) and v.synced and not v.sparse,
        )

    return [node(v) for v in step.variables]


def check_backup(params: Params, topology: Topology) -> None:
    """Refuse backup workers if no worker is left to wait for.

    Raises:
        StrategyError: there are as many backup workers as workers, or more.
    """
    backup = Execution.of(params).backup
    if backup >= topology.n_tasks:
        raise StrategyError(
            f"backup={backup} must be less than the number of workers, got workers={topology.n_tasks}; "
            "lower backup or add workers"
        )


def check_knobs(params: Params, nodes: Sequence[PlanNode], topology: Topology) -> None:
    """Refuse server knobs that contradict other nodes or need more workers.

    Raises:
        StrategyError: too many backup workers, or a plan with collectives that lets workers run ahead of each
            other.
    """
    check_backup(params, topology)
    reduced = next((n for n in nodes if n.synchronizer not in ("none", "ps")), None)
    knob = first_set(params, SYNC.name, STALENESS.name, BACKUP.name)
    if reduced is not None and knob is not None:
        raise StrategyError(
            f"{knob} lets workers go ahead of each other, got collectives for variable {reduced.variable!r}, "
            f"where all wait for all; drop {knob.partition('=')[0]}, or put every variable on a server"
        )
