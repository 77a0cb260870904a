"""The step as one computation on all cores, in the form that TensorFlow's TPU rewrites expect.

Every replica has its own copy of each variable, and the computation takes them as one replicated input.
Gradients and new forward state go through a sum over replicas, scaled by a replica's share of the batch.

Source:
    Ops and attributes are those that `tf.compat.v1.tpu.replicate` of TensorFlow 2.21 writes; a test builds
    both and compares them.
"""

from collections.abc import Collection, Container, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.builders.tpu import uneven_shares
from strategies.errors import UnsupportedError
from strategies.ir.control_flow import LoopFrames
from strategies.ir.graph import DType, Graph, Node, Shape, identity, producer
from strategies.ir.ops import op_set
from strategies.ir.tensor_proto import const
from strategies.ir.train_graph import TrainGraph
from strategies.ir.traversal import Renames, ancestors, reachable_functions, renamed_copies
from strategies.ir.variable import Rule, Variable
from strategies.numerics.combine import weighted_sum
from strategies.numerics.resharding import only_first
from strategies.passes.replicate.replicate import split_batch
from strategies.passes.replicate.step_copies import replica_prefix
from strategies.passes.task_plan import TaskPlan
from strategies.passes.tpu.replicated_computation import (
    DONE,
    METADATA,
    OF_CLUSTER,
    PREFIX,
    WAITED_FOR,
    cross_replica_sum,
    fed_on,
    input_identity,
    input_of,
    output_identity,
    replicated_input,
    replicated_output,
    scaffold_nodes,
    updates_done,
)
from strategies.tf_bridge.op_types import output_type
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import Replica, Topology

# Ops with a data-dependent number of rows in their results, by their documentation
# (TensorFlow 2.21, https://www.tensorflow.org/api_docs/python/tf/raw_ops).
_DATA_DEPENDENT = op_set("""
    DenseToDenseSetOperation DenseToSparseSetOperation DynamicPartition ListDiff NonMaxSuppressionV3
    NonMaxSuppressionV4 NonMaxSuppressionV5 SparseFillEmptyRows SparseReshape SparseSlice
    SparseToSparseSetOperation StringSplit StringSplitV2 Unique UniqueV2 UniqueWithCounts
    UniqueWithCountsV2 Where
""")
# Types that sums over replicas support.
SUMMED = frozenset({"half", "bfloat16", "float", "double", "int32", "uint32"})


def check_compilable(step: TrainGraph, body: Collection[str]) -> None:
    """Refuse a step that cannot be compiled for cores.

    Args:
        body: names of nodes that cores would run.
    Raises:
        UnsupportedError: the step cannot be compiled; the message names the first obstacle.
    """
    if step.effects:
        raise _refusal(f"must show nothing, got {step.effects[0]!r}, which prints, writes or saves")
    if step.tables:
        raise _refusal(f"must look nothing up in tables of keys, got {step.tables[0]!r}")
    for b in step.boundaries:
        if b.indices is not None:
            raise _refusal(
                f"variable {b.variable!r} must have dense gradients, got rows, as many as ids differ"
            )
        if b.dtype not in SUMMED:
            types = ", ".join(sorted(SUMMED))
            raise _refusal(
                f"variable {b.variable!r} must be of a type that cores sum ({types}), got {b.dtype}",
                way_out="give it one of these, or compare it",
            )
    for where, node in _nodes(step.graph, body):
        if node.op in _DATA_DEPENDENT:
            raise _refusal(f"{where}node {node.name!r} must have a result of known shape, got {node.op}")


def _nodes(graph: Graph, body: Collection[str]) -> Iterator[tuple[str, Node]]:
    own = [node for node in graph.nodes if node.name in body]
    for node in own:
        yield "", node
    for name in sorted(reachable_functions(own, graph.functions)):
        for node in graph.functions[name].nodes:
            yield f"function {name!r}, ", node


def _refusal(rule: str, way_out: str = "compare it") -> UnsupportedError:
    return UnsupportedError(
        f"a step for TPU cores: {rule}; {way_out} by all-reduce or sharded-update instead"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatedVariables:
    """Copies of a step's variables, one on each core.

    Attributes:
        nodes: handles, loads and reads of all copies, and replicated handles under the captured names.
        renames: rank → references to its copies.
    """

    nodes: tuple[Node, ...]
    renames: Mapping[int, Renames]

    @classmethod
    def of(cls, step: TrainGraph, topology: Topology) -> "ReplicatedVariables":
        access = [name for v in step.variables for name in map(producer, v.access)]
        needed = ancestors(step.graph, access)
        originals = [node for node in step.graph.nodes if node.name in needed]
        nodes: list[Node] = []
        renames: dict[int, Renames] = {}
        for replica in topology.replicas():
            prefix = replica_prefix(replica.rank)
            renames[replica.rank] = Renames({node.name: prefix + node.name for node in originals})
            nodes += _on(replica, originals, renames[replica.rank], prefix)
        for v in step.variables:
            refs = [own[v.handle] for own in renames.values()]
            mirrored = v.rule != "per-replica"
            nodes.append(replicated_input(v.handle, refs, DType("resource"), mirrored=mirrored))
        return cls(nodes=tuple(nodes), renames=renames)

    def of_replica(self, v: Variable, rank: int) -> Variable:
        handle, placeholder, load, read = (self.renames[rank][name] for name in v.access)
        return replace(v, handle=handle, placeholder=placeholder, load=load, read=read, rank=rank)


def _on(replica: Replica, originals: list[Node], renames: Renames, prefix: str) -> Iterator[Node]:
    for node in renamed_copies(originals, renames, frames=prefix, device=lambda _: replica.device):
        if node.op == "VarHandleOp":
            shared_name = node.attrs["shared_name"]
            assert isinstance(shared_name, bytes)
            yield replace(node, attrs={**node.attrs, "shared_name": prefix.encode() + shared_name})
        else:
            yield node


_INT32 = DType("int32")
RANK = "rank"
"""Name of the input with a replica's rank, if the replica needs it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicateComputation:
    """Replicate the step over the cores of all tasks.

    The result contains the copies of all replicas, because a whole slice runs one program; its fields
    describe those of this task.
    """

    name: ClassVar[str] = "tpu-replicate"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        uneven = uneven_shares(topology)
        if uneven is not None:
            raise UnsupportedError(f"a step for TPU cores: {uneven}")
        body = _body(graph)
        check_compilable(graph, body)
        updates, looped = graph.targets(), LoopFrames.of(graph.graph).frames
        variables = ReplicatedVariables.of(graph, topology)
        inputs, fed = self._inputs(graph, topology)
        renames = Renames({})
        renames.update(fed)
        summed = tuple(_summed(graph, self.plan.layers))
        sums = {item.node: f"{PREFIX}sum/{item.node}" for item in summed}
        returned = [graph.losses[0].tensor, *(result.tensor for result in graph.results)]
        dtypes = [output_type(graph.graph, ref) for ref in returned]
        nodes = (
            *(graph.graph.by_name[b.node] for b in graph.batch),
            *scaffold_nodes(topology.n_replicas),
            *variables.nodes,
            *inputs,
            *(_in_body(n, renames, sums, updates, looped) for n in graph.graph.nodes if n.name in body),
            *(node for item in summed for node in _sum(graph, item, sums[item.node], topology)),
            updates_done(updates),
            *(
                node
                for place, (ref, dtype) in enumerate(zip(returned, dtypes, strict=True))
                if dtype is not None
                for node in _output(place, renames[ref], dtype, topology.n_replicas)
            ),
        )
        replicated = Graph(nodes=nodes, functions=graph.graph.functions, extra=graph.graph.extra)
        return self._described(replace(graph, graph=replicated), variables, topology)

    def _described(self, graph: TrainGraph, variables: ReplicatedVariables, topology: Topology) -> TrainGraph:
        local = topology.local_replicas(self.plan.task)
        loss = graph.losses[0]
        shares = {replica.rank: replica.examples / topology.batch_size for replica in local}
        return replace(
            graph,
            variables=tuple(variables.of_replica(v, rank) for v in graph.variables for rank in shares),
            boundaries=(),
            regions=(),
            shared_update=(),
            state_targets=(),
            step_targets=tuple(_output_of(0, rank) for rank in shares),
            losses=tuple(
                replace(loss, tensor=_output_of(0, rank), weight=share if loss.reduction == "mean" else 1.0)
                for rank, share in shares.items()
            ),
            results=tuple(
                replace(result, tensor=_output_of(1 + place, rank), rank=rank, weight=share)
                for place, result in enumerate(graph.results)
                for rank, share in shares.items()
            ),
            statistics=(),
            savers=(),
        )

    def _inputs(self, graph: TrainGraph, topology: Topology) -> tuple[list[Node], dict[str, str]]:
        nodes: list[Node] = []
        refs: dict[str, list[str]] = {b.node: [] for b in graph.batch}
        for task in range(topology.n_tasks):
            shards = topology.local_shards(task)
            batch = graph.batch
            if task != self.plan.task:
                batch = tuple(replace(b, node=fed_on(task, b.node)) for b in batch)
                nodes += (
                    replace(graph.graph.by_name[b.node], name=other.node)
                    for b, other in zip(graph.batch, batch, strict=True)
                )
            split, own = split_batch(batch, shards, topology.host_device(task))
            nodes += split
            for b, other in zip(graph.batch, batch, strict=True):
                refs[b.node] += [own[shard.rank][other.node] for shard in shards]
        dtypes = {b.node: b.dtype for b in graph.batch}
        if any(b.rule == "first-replica" for b in graph.boundaries):
            ranks = [
                const(f"{replica_prefix(r.rank)}{RANK}", _INT32, r.rank, device=topology.host_device(r.task))
                for r in topology.replicas()
            ]
            nodes += ranks
            refs[RANK], dtypes[RANK] = [node.name for node in ranks], _INT32
        for name, own_refs in refs.items():
            nodes.append(replicated_input(input_of(name), own_refs, dtypes[name], mirrored=False))
            nodes.append(input_identity(_input_name(name), input_of(name), dtypes[name]))
        return nodes, {name: _input_name(name) for name in refs}


def _body(graph: TrainGraph) -> set[str]:
    outside = {v.handle for v in graph.variables} | {b.node for b in graph.batch}
    return ancestors(graph.graph, (*graph.targets(), *graph.returned()), stop=outside)


def _in_body(
    node: Node, renames: Renames, sums: Mapping[str, str], updates: Container[str], looped: Container[str]
) -> Node:
    inputs = tuple(renames[ref] for ref in node.inputs)
    if node.name in sums:
        inputs = (sums[node.name], *inputs[1:])
    attrs = {**node.attrs, **WAITED_FOR} if node.name in updates else node.attrs
    changed = node.changed(inputs=inputs, attrs=attrs, device="")
    # No edge of control leads into a loop.
    return changed.changed(attrs={**attrs, **OF_CLUSTER}) if node.name in looped else _of_cluster(changed)


def _of_cluster(node: Node) -> Node:
    """Mark a node as part of the computation; a node without data inputs waits for it."""
    waits = () if node.data_inputs else (f"^{METADATA}",)
    return node.changed(inputs=(*node.inputs, *waits), attrs={**node.attrs, **OF_CLUSTER})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Summed:
    """An identity whose input becomes the replicas' combined value."""

    node: str
    rule: Rule
    dtype: DType
    shape: Shape


def _summed(graph: TrainGraph, layers: Container[str]) -> Iterator[_Summed]:
    for b in graph.boundaries:
        yield _Summed(node=b.values, rule=b.rule, dtype=b.dtype, shape=b.shape)
    for s in graph.statistics:
        # With equal shards the mean equals every weight that `SyncStatistics` gives, backward too.
        if s.layer in layers:
            yield _Summed(node=s.node, rule="mean", dtype=s.dtype, shape=s.shape)


def _sum(graph: TrainGraph, summed: _Summed, name: str, topology: Topology) -> Iterator[Node]:
    contribution = graph.graph.by_name[summed.node].inputs[0]
    spec = TensorSpec(dtype=summed.dtype, shape=summed.shape)
    nodes: tuple[Node, ...] = ()
    if summed.rule == "first-replica":
        snippet = trace(only_first, (spec, TensorSpec(dtype=_INT32, shape=Shape(()))))
        nodes, (contribution,) = snippet.splice(f"{name}/first/", [contribution, _input_name(RANK)])
    elif summed.rule == "mean":
        snippet = trace(weighted_sum, (spec,), weights=(1 / topology.n_replicas,))
        nodes, (contribution,) = snippet.splice(f"{name}/scaled/", [contribution])
    yield from map(_of_cluster, nodes)
    yield from cross_replica_sum(name, contribution, summed.dtype, topology.n_replicas)


def _output(place: int, ref: str, dtype: DType, n_replicas: int) -> Iterator[Node]:
    name = f"{PREFIX}output_{place}"
    yield output_identity(f"{name}/given", ref, dtype)
    yield replicated_output(name, f"{name}/given", dtype, n_replicas)
    for rank in range(n_replicas):
        source = name if rank == 0 else f"{name}:{rank}"
        yield identity(_output_of(place, rank), source, dtype, waits=[DONE])


def _output_of(place: int, rank: int) -> str:
    return f"{PREFIX}output_{place}/shard_{rank}"


def _input_name(name: str) -> str:
    return f"{input_of(name)}/taken"
