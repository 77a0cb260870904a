"""Synchronised batch norm: each replica normalises by the mean and variance of all examples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

from strategies.ir.graph import DType, Node, Shape
from strategies.ir.tensor_proto import const
from strategies.ir.train_graph import Statistic, TrainGraph
from strategies.numerics.collectives import keyed_all_reduce
from strategies.numerics.combine import weighted_sum
from strategies.passes.collectives.members import STATISTICS_KEY, instance_keys
from strategies.passes.replicate.rewire import fed_with
from strategies.passes.replicate.step_copies import replica_prefix
from strategies.passes.task_plan import TaskPlan
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import Topology

_KEY = DType("int32")
Group: TypeAlias = Mapping[str, Sequence[Statistic]]
"""Name in the captured step → the copies of this task's replicas, by rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SyncStatistics:
    """Replace each replica's statistics by their weighted sum over all replicas.

    With weights w = n/B, the mean over the batch is m = Σ w·m_i. The batch's loss contains a replica's loss
    with weight v (v = w, or 1 for summed losses), so the batch's gradient with respect to m is Σ v·g_i over
    the replicas' gradients g_i. A replica's gradient with respect to m_i, in its own scale, is w/v of it: for
    means this is the same sum, in the backward pass. A variance is computed around m, so that it is a mean
    like any other.

    Independent values are sent together. A worker sums its replicas first, so that the bytes do not depend on
    their number.
    """

    name: ClassVar[str] = "sync-statistics"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        joint = [s for s in graph.statistics if s.layer in self.plan.layers]
        if not joint:
            return graph
        groups = _groups(joint)
        keys = instance_keys(groups)
        inputs: dict[str, str] = {}
        added: list[Node] = []
        for name, group in groups.items():
            nodes, sums = self._local(name, group, graph, topology)
            added += nodes
            if topology.n_tasks > 1:
                nodes, sums = self._total(name, group, sums, keys[name], topology)
                added += nodes
            for copies, total in zip(group.values(), sums, strict=True):
                nodes, own = self._scaled(name, copies, total, graph, topology)
                added += nodes
                inputs |= own
        apart = tuple(s for s in graph.statistics if s.layer not in self.plan.layers)
        return replace(graph, graph=fed_with(graph.graph, inputs, added), statistics=apart)

    def _local(
        self, name: str, group: Group, graph: TrainGraph, topology: Topology
    ) -> tuple[list[Node], list[str]]:
        by_name = graph.graph.by_name
        shares, weights = self._shares(topology), tuple(loss.weight for loss in graph.losses)
        host = topology.host_device(self.plan.task)
        nodes: list[Node] = []
        sums: list[str] = []
        for captured, copies in group.items():
            specs = tuple(TensorSpec(dtype=copy.dtype, shape=copy.shape) for copy in copies)
            own = [by_name[copy.node].inputs[0] for copy in copies]
            snippet = trace(weighted_sum, specs, weights=weights if copies[0].backward else shares)
            spliced, (total,) = snippet.splice(f"{name}/{captured}/", own, device=host)
            nodes += spliced
            sums.append(total)
        return nodes, sums

    def _total(
        self, name: str, group: Group, sums: Sequence[str], key: int, topology: Topology
    ) -> tuple[list[Node], list[str]]:
        first = [copies[0] for copies in group.values()]
        host = topology.host_device(self.plan.task)
        own_key = const(f"{name}/key", _KEY, key, device=host)
        snippet = trace(
            keyed_all_reduce,
            (
                *(TensorSpec(dtype=spec.dtype, shape=spec.shape) for spec in first),
                TensorSpec(dtype=_KEY, shape=Shape(())),
            ),
            shapes=tuple(spec.shape.dims or () for spec in first),
            group=(topology.n_tasks, STATISTICS_KEY),
            hint="auto",
        )
        spliced, totals = snippet.splice(f"{name}/", [*sums, own_key.name], device=host)
        return [own_key, *spliced], list(totals)

    def _scaled(
        self, name: str, copies: Sequence[Statistic], total: str, graph: TrainGraph, topology: Topology
    ) -> tuple[list[Node], dict[str, str]]:
        nodes: list[Node] = []
        own: dict[str, str] = {}
        for copy, share, loss in zip(copies, self._shares(topology), graph.losses, strict=True):
            own[copy.node] = total
            if copy.backward and share != loss.weight:
                snippet = trace(
                    weighted_sum,
                    (TensorSpec(dtype=copy.dtype, shape=copy.shape),),
                    weights=(share / loss.weight,),
                )
                spliced, (own[copy.node],) = snippet.splice(
                    f"{name}/{copy.node}/", [total], device=graph.graph.by_name[copy.node].device
                )
                nodes += spliced
        return nodes, own

    def _shares(self, topology: Topology) -> tuple[float, ...]:
        return tuple(r.examples / topology.batch_size for r in topology.local_replicas(self.plan.task))


def _groups(statistics: Sequence[Statistic]) -> dict[str, dict[str, list[Statistic]]]:
    groups: dict[str, dict[str, list[Statistic]]] = {}
    for statistic in statistics:
        assert statistic.rank is not None
        group = groups.setdefault(f"statistics/level_{statistic.level}_{statistic.dtype}", {})
        group.setdefault(statistic.node.removeprefix(replica_prefix(statistic.rank)), []).append(statistic)
    return groups
