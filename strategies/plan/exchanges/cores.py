"""Exchanges between the replicas of a TPU computation, real or emulated."""

from collections.abc import Iterator, Mapping

import numpy as np

from strategies.ir.graph import element_bytes, n_elements
from strategies.plan.exchanges.flow import Flow, Op, RunFacts, Values
from strategies.plan.links import Links, PairLinks
from strategies.plan.schema import PlanNode, VariableSummary
from strategies.plan.sharding import MOST_MEMBERS_OF_A_TASK


def core_flows(node: PlanNode, by_name: Mapping[str, VariableSummary], run: RunFacts) -> Iterator[Flow]:
    """Exchanges of a variable between the replicas of a TPU computation.

    If every replica needs only its part of a sum, each sends (N−1)/N of the buffer, and as much to gather a
    partitioned variable, for reads and after loops; if it is whole, the sum does both. Emulated,
    parts have one length, and beyond ten replicas the whole sum goes around. Sums and gathers go around a
    ring, parts straight to their owners.
    """
    n = run.topology.n_replicas
    variable = by_name[node.variable]
    updated = variable if variable.slot_of is None else by_name[variable.slot_of]
    crossings = variable.crossings if node.synchronizer == "cross-replica-sum" else 0
    # An update of rows needs the whole variable and slots; one that is not elementwise needs the gradient.
    is_whole = updated.sparse or not updated.updated_by_elements or n > MOST_MEMBERS_OF_A_TASK

    def flow(
        op: Op, values: Values, n_bytes: float, links: Links, *, n_rounds: int = 1, period: int = 1
    ) -> Flow:
        return Flow(
            op=op,
            values=values,
            variables=(node.variable,),
            transport="cores",
            links=links,
            n_members=n,
            n_bytes=n_bytes / period,
            value_bytes=node.bytes,
            n_rounds=n_rounds,
            period=period,
        )

    if crossings and (is_whole or not node.in_parts):
        summed = node.bytes * crossings
        yield flow("sum", "gradients", summed, run.sum_ring(n, summed), n_rounds=crossings)
    if not node.in_parts:
        return
    padded = -(-n_elements(node.shape) // n) * n * element_bytes(node.dtype)
    if crossings and not is_whole:
        scattered = padded * crossings
        shares = np.full(n, scattered / n, np.float64)
        links = PairLinks(replicas_per_task=run.topology.replicas_per_task, shares=shares)
        yield flow("scatter", "gradients", scattered, links, n_rounds=crossings)
    n_reads = 1 if updated.sparse else max(variable.reads, 1) if variable.kind == "trainable" else 0
    if n_reads:
        read = padded * n_reads
        yield flow("gather", "read values", read, run.gather_ring(read), n_rounds=n_reads)
    n_steps = run.execution.steps_per_loop
    yield flow("gather", "new values", padded, run.gather_ring(padded, period=n_steps), period=n_steps)
