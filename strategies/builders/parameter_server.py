"""Parameter servers: which task holds which variable."""

from collections.abc import Mapping

from strategies.builders.base import Params, node_of
from strategies.plan import PlanNode, StepSummary, VariableSummary
from strategies.topology import Topology


def one_server(step: StepSummary, topology: Topology, params: Params) -> list[PlanNode]:  # noqa: ARG001 - a Layout
    """All variables on task 0."""
    return _placed(step, {v.name: 0 for v in step.variables})


def load_balancing(step: StepSummary, topology: Topology, params: Params) -> list[PlanNode]:  # noqa: ARG001 - a Layout
    """Each synchronised variable in turn to the task that holds the fewest bytes so far."""
    held = [0] * topology.n_tasks
    destinations: dict[str, int] = {}
    for variable in step.variables:
        if variable.synced:
            task = min(range(topology.n_tasks), key=held.__getitem__)
            destinations[variable.name] = task
            held[task] += variable.bytes
    return _placed(step, destinations)


def _placed(step: StepSummary, destinations: Mapping[str, int]) -> list[PlanNode]:
    """Slots go with their variable, what updates share to task 0, random state stays with its replica."""

    def destination(v: VariableSummary) -> int | None:
        if v.rule == "per-replica":
            return None
        return destinations.get(v.slot_of or v.name, 0)

    return [
        node_of(v, destination=destination(v), synchronizer="ps" if v.synced else "none")
        for v in step.variables
    ]
