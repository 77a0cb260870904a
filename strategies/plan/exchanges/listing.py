"""List of a step's exchanges: one flow for each message, or for messages that are alike.

A flow has the bytes of a message, and facts about it that a simulation of steps needs: variables, kind of
values, transport, members, rounds. Values that passes send together are one flow.

Formulas: in a ring all-reduce each member sends 2(N−1)/N of the buffer (Patarasuk and Yuan 2009, Bandwidth
optimal all-reduce algorithms), in a reduce-scatter or an all-gather (N−1)/N (Xu et al. 2020, Automatic
cross-replica sharding of weight update, arXiv:2004.13336; for values gathered before they are read,
Rajbhandari et al. 2020, ZeRO, arXiv:1910.02054). With parameter servers a worker pulls and pushes what other
hosts serve (Li et al. 2014, Scaling distributed machine learning with the parameter server).
"""

from collections.abc import Sequence

from strategies.params import Params
from strategies.plan.exchanges.collectives import collective_flows, statistics_flows
from strategies.plan.exchanges.cores import core_flows
from strategies.plan.exchanges.flow import Flow, RunFacts
from strategies.plan.exchanges.owners import is_scattered, owner_flows
from strategies.plan.exchanges.servers import server_flows
from strategies.plan.node_rules import is_owned
from strategies.plan.partitions import alike_parts, joins_parts, parts_of
from strategies.plan.schema import PlanNode, StatisticSummary, StepSummary
from strategies.topology import Topology


def flows_of(
    step: StepSummary,
    nodes: Sequence[PlanNode],
    topology: Topology,
    params: Params,
    *,
    statistics: Sequence[StatisticSummary] = (),
) -> tuple[Flow, ...]:
    """List the exchanges of a step under these plan nodes.

    Rows of sparse gradients count with their upper bound: every id of the batch is different. If equal ids
    are kept, the bound is the exact number.

    Args:
        params: parameters of the plan's strategy.
        statistics: statistics of layers that normalise over all replicas' examples.
    """
    by_name = {v.name: v for v in step.variables}
    run = RunFacts.of(step, topology, params)
    served, on_cores, reduced = [], [], []
    owned, are_joined = [], joins_parts(nodes)
    for node in (node for node in nodes if node.synchronizer != "none" and is_owned(node)):
        name, variable = node.variable, by_name[node.variable]
        owned += [(name, part, variable) for part in ((node,) if are_joined else parts_of(node))]
        if not is_scattered(node):
            # What all replicas get of its gradient crosses whole.
            alike = alike_parts(_whole(node) if are_joined else node)
            reduced += [(parts, variable) for parts in alike]
    for node in (node for node in nodes if node.synchronizer == "none" or not is_owned(node)):
        variable, synchronizer = by_name[node.variable], node.synchronizer
        for parts in alike_parts(node):
            if synchronizer in ("ps", "robust-servers") or (synchronizer == "none" and parts.destinations):
                served.append((parts, variable))
            elif synchronizer == "cross-replica-sum" or node.in_parts:
                on_cores.append(parts.node)
            elif synchronizer != "none":
                reduced.append((parts, variable))
    return (
        *server_flows(served, run),
        *(flow for node in on_cores for flow in core_flows(node, by_name, run)),
        *collective_flows(reduced, run),
        *owner_flows(owned, run),
        *statistics_flows(statistics, run),
    )


def _whole(node: PlanNode) -> PlanNode:
    """Node of a variable with owners, as if it were not in parts."""
    if node.partition is None:
        return node
    group = None if node.partition.groups is None else node.partition.groups[0]
    return node.model_copy(update={"partition": None, "group": group})
