"""Local SGD: how often the variables of replicas that update by themselves become their average.

Averaged are trainable variables and forward state (Stich 2018, arXiv:1805.09767). What optimizers own, such
as momentum and averages over steps, stays with its replica (local momentum in Lin et al. 2018,
arXiv:1808.07217).
"""

from strategies.builders import all_reduce
from strategies.plan.schema import PlanNode, StepSummary
from strategies.plan.strategy import Param, Params
from strategies.topology import Topology

PERIOD = Param(name="period", type=int, default=8, minimum=1)


def averaged(step: StepSummary, topology: Topology, params: Params) -> list[PlanNode]:
    """Variables in buckets, also those whose gradients are rows.

    State that replicas add up is summed in every step: a sum of sums that have gone on apart counts what they
    began with more than once.
    """
    dense = tuple(v.model_copy(update={"sparse": False}) for v in step.variables)
    nodes = all_reduce.in_buckets(step.model_copy(update={"variables": dense}), topology, params, "average")
    plan_nodes = []
    for v, node in zip(step.variables, nodes, strict=True):
        if v.rule == "sum":
            plan_nodes.append(node.model_copy(update={"synchronizer": "all-reduce"}))
        else:
            plan_nodes.append(node.model_copy(update={"sparse": v.sparse, "transport": None}))
    return plan_nodes
