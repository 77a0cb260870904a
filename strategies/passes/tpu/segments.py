"""A replicated computation cut at its sums, so that its replicas can be compiled one by one.

A node is in the first segment that has all its inputs. Nodes that depend only on constants are repeated in
every segment that needs them: compilers need constant shapes.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import chain

from strategies.errors import UnsupportedError
from strategies.ir.graph import Function, Graph, Node, producer
from strategies.ir.ops import ENTERS
from strategies.ir.train_graph import TrainGraph
from strategies.ir.traversal import (
    ancestors,
    drop_unreachable_functions,
    reachable_functions,
    topological_order,
    with_function_prefix,
)
from strategies.passes.replicate.step_copies import replica_prefix
from strategies.passes.tpu.replicate import RANK
from strategies.passes.tpu.replicated_computation import (
    DONE,
    METADATA,
    SUM,
    ReplicatedComputation,
    dtype_of,
    in_program,
    input_of,
)
from strategies.program import ReplicaProgram, Segment
from strategies.tf_bridge.graphdef import serialize_graph
from strategies.tf_bridge.op_types import op_definition


def replica_program(step: TrainGraph) -> ReplicaProgram:
    """Program of a replica of a step's replicated computation.

    Raises:
        UnsupportedError: the step has a TensorFlow 1 loop, or a TensorArray that grows.
    """
    computation = ReplicatedComputation.of(step)
    loss = computation.outputs[0].inputs[0]
    waits = computation.graph.by_name[DONE].control_inputs
    updates = frozenset(name for name in waits if name != METADATA)
    inputs = {node.name for node in computation.inputs}
    needed = ancestors(computation.graph, (producer(loss), *updates), stop=inputs | {METADATA})
    nodes = [
        in_program(node, tuple(ref for ref in node.inputs if ref != f"^{METADATA}"))
        for node in computation.body
        if node.name in needed
    ]
    _refuse_uncompilable(nodes, computation.graph.functions)
    cut = _Cut.of(topological_order(nodes), roots=updates | {producer(loss)})
    segments = tuple(cut.segments(computation.graph, outputs=(loss,), targets=updates))
    handles = {v.handle.removeprefix(replica_prefix(v.rank or 0)): v.name for v in step.variables}
    asks_rank = any(input_of(RANK) in segment.inputs for segment in segments)
    return ReplicaProgram(
        segments=segments,
        batch=tuple(input_of(b.node) for b in step.batch),
        rank=input_of(RANK) if asks_rank else None,
        variables=handles,
        loss=loss,
        loss_dtype=dtype_of(computation.outputs[0]),
        weight=step.losses[0].weight,
    )


def _refuse_uncompilable(nodes: Sequence[Node], functions: Mapping[str, Function]) -> None:
    """Refuse operations that XLA does not support, or on which it aborts the process."""
    bodies = (functions[name].nodes for name in sorted(reachable_functions(nodes, functions)))
    for node in chain(nodes, *bodies):
        if node.op in ENTERS:
            raise UnsupportedError(
                f"a step for TPU devices: its loops must be functions, got {node.name!r} of a loop of "
                "TensorFlow 1; write it with tf.while_loop in a tf.function"
            )
        if node.attrs.get("resize_if_index_out_of_bounds") is True:
            raise UnsupportedError(
                f"a step for TPU devices: each tf.TensorArray must have its size, got {node.name!r}, which "
                "makes one longer; give it size=, without dynamic_size"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """Topologically ordered nodes and their segments.

    Attributes:
        places: node → its segment; a sum is in the segment of its input.
        anywhere: nodes that depend only on constants.
    """

    nodes: Sequence[Node]
    places: Mapping[str, int]
    anywhere: AbstractSet[str]

    @classmethod
    def of(cls, nodes: Sequence[Node], *, roots: AbstractSet[str]) -> "_Cut":
        places: dict[str, int] = {}
        after: dict[str, int] = {}
        anywhere: set[str] = set()
        for node in nodes:
            needed = [producer(ref) for ref in node.inputs]
            places[node.name] = max((after[name] for name in needed if name in after), default=0)
            after[node.name] = places[node.name] + (node.op == SUM)
            if node.name not in roots and _is_pure(node) and all(name in anywhere for name in needed):
                anywhere.add(node.name)
        return cls(nodes=nodes, places=places, anywhere=anywhere)

    def segments(
        self, graph: Graph, *, outputs: Sequence[str], targets: AbstractSet[str]
    ) -> Iterator[Segment]:
        members: list[list[Node]] = [[] for _ in range(max(self.places.values()) + 1)]
        sums: list[dict[str, str]] = [{} for _ in members]
        for node in self.nodes:
            place = self.places[node.name]
            if node.op == SUM:
                sums[place][node.name] = node.data_inputs[0]
            elif node.name not in self.anywhere:
                members[place].append(node)
        own = [
            self._with_constants(nodes, [*after.values()]) for nodes, after in zip(members, sums, strict=True)
        ]
        crossing = dict.fromkeys(outputs)
        waited: set[str] = set(targets)
        for nodes in own:
            names = {node.name for node in nodes}
            crossing |= dict.fromkeys(
                ref for node in nodes for ref in node.data_inputs if producer(ref) not in names
            )
            waited.update(name for node in nodes for name in node.control_inputs if name not in names)
        for nodes, after in zip(own, sums, strict=True):
            yield _segment(graph, nodes, after, crossing, waited)

    def _with_constants(self, nodes: Sequence[Node], contributed: Sequence[str]) -> tuple[Node, ...]:
        names = {node.name for node in nodes}
        needed = {producer(ref) for node in nodes for ref in node.inputs} | set(map(producer, contributed))
        by_name = {node.name: node for node in self.nodes}
        waiting = [name for name in needed if name in self.anywhere]
        while waiting:
            name = waiting.pop()
            if name not in names:
                names.add(name)
                waiting += map(producer, by_name[name].inputs)
        return tuple(node for node in self.nodes if node.name in names)


def _segment(
    graph: Graph,
    nodes: Sequence[Node],
    sums: Mapping[str, str],
    crossing: Iterable[str],
    waited: AbstractSet[str],
) -> Segment:
    names = {node.name for node in nodes}
    inputs = dict.fromkeys(ref for node in nodes for ref in node.data_inputs if producer(ref) not in names)
    outputs = dict.fromkeys(ref for ref in (*sums.values(), *crossing) if producer(ref) in names)
    # Segments run one after the other.
    alone = tuple(node.without_waits(set(node.control_inputs) - names) for node in nodes)
    own = _with_names_of_their_own(drop_unreachable_functions(graph.with_nodes(alone)))
    return Segment(
        graph_def=serialize_graph(own),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        targets=tuple(node.name for node in nodes if node.name in waited),
        sums=sums,
        n_nodes=len(alone),
    )


def _with_names_of_their_own(graph: Graph) -> Graph:
    """Rename functions by a digest: the process may have traced other functions under these names."""
    if not graph.functions:
        return graph
    digest = hashlib.sha256(serialize_graph(graph)).hexdigest()[:16]
    return with_function_prefix(graph, f"replica_{digest}/")


def _is_pure(node: Node) -> bool:
    definition = op_definition(node.op)
    return definition is not None and not definition.is_stateful and node.op != SUM
