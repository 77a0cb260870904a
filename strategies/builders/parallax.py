"""Parallax: dense gradients by all-reduce, sparse gradients through parameter servers.

Source: Kim et al. 2019, Parallax: sparsity-aware data parallel training, arXiv:1808.02621.
"""

from dataclasses import replace

from strategies.builders import all_reduce, parameter_server
from strategies.builders.shared_params import KNOBS
from strategies.params import Params
from strategies.plan.schema import PlanNode, StepSummary, VariableSummary
from strategies.topology import Topology

# Collectives wait for all workers, so that none can run ahead of the others.
PARAMS = (
    all_reduce.CHUNK_SIZE,
    replace(parameter_server.SYNC, choices=(True,)),
    replace(parameter_server.STALENESS, choices=(0,)),
    *KNOBS,
)


def by_gradient(step: StepSummary, topology: Topology, params: Params) -> list[PlanNode]:
    """Dense gradients in buckets of `chunk_size`; sparse ones, and their slots, on the least loaded servers.

    Every replica has its own copy of shared values such as a step counter. With servers, TensorFlow's
    collectives are used: the workers' own ring waits on a thread that others may need to read here.
    """
    sparse = {v.name for v in step.variables if v.synced and v.sparse}

    def is_served(v: VariableSummary) -> bool:
        return (v.slot_of or v.name) in sparse

    def only(*, served: bool) -> StepSummary:
        chosen = tuple(v for v in step.variables if is_served(v) == served)
        return step.model_copy(update={"variables": chosen})

    reduced = all_reduce.bucketed(only(served=False), topology, params)
    if sparse:
        reduced = [
            node.model_copy(update={"transport": "auto"}) if node.transport == "tcp" else node
            for node in reduced
        ]
    served = parameter_server.load_balancing(only(served=True), topology, {})
    by_name = {node.variable: node for node in (*reduced, *served)}
    return [by_name[v.name] for v in step.variables]
