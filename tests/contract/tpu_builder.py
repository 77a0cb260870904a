"""Replicated computations as TensorFlow's own builder writes them, and as forms that tell two of them apart.

`TPUStrategy` itself cannot be made here: it asks a TPU worker for its topology. What it builds graphs with
can: `tf.compat.v1.tpu.replicate`, and `TPUMirroredVariable`, whose handle is a replicated input in there.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import tensorflow as tf

# TensorFlow exports none of what its TPUStrategy makes variables of.
from tensorflow.python.distribute.tpu_values import TPUMirroredVariable

from strategies.ir.graph import Graph, Node, TensorValue, output_index, producer
from strategies.ir.ops import ASSIGNMENTS, DENSE_UPDATES
from strategies.ir.tensor_proto import constant_array
from strategies.ir.train_graph import TrainGraph
from strategies.ir.traversal import ancestors, topological_order
from strategies.tf_bridge.graphdef import graph_from_graphdef

v1 = tf.compat.v1
UPDATES = ASSIGNMENTS | DENSE_UPDATES
BODY = "_tpu_replicate"
# Attributes that say whose computation a node is of; there is one.
CLUSTER = frozenset({BODY, "_pivot_for_cluster", "_tpu_compilation_status"})
# Differences that mean nothing to who compiles the graph, each with its reason.
IGNORED_ATTRS = {
    "_class": "TensorFlow's optimizers ask to lie beside variables; one program lies on one core",
    "_user_specified_name": "what an argument was called",
    "validate_shape": "TPUMirroredVariable leaves it out of assignments; capture keeps what was traced",
}
EITHER_ORDER = {"Mul": "TPUStrategy writes share · gradient, ours gradient · share, which is the same number"}


@dataclass(frozen=True, kw_only=True)
class Computation:
    """A replicated computation, with all that is around it.

    Attributes:
        handles: node → variable and replica of its handle.
        fed: placeholder → index of the batch component that it is fed with.
        results: nodes with each replica's results, then the node that reports whether compilation succeeded.
    """

    graph: Graph
    handles: Mapping[str, tuple[str, int]]
    fed: Mapping[str, int]
    results: Sequence[str]

    @cached_property
    def inputs(self) -> tuple[Node, ...]:
        return tuple(node for node in self.graph.nodes if node.op == "TPUReplicatedInput")

    @cached_property
    def reached(self) -> tuple[Node, ...]:
        """Nodes that the results need, from the replicated inputs on."""
        outside = {producer(ref) for node in self.inputs for ref in node.data_inputs}
        names = ancestors(self.graph, self.results, stop=outside)
        return topological_order([node for node in self.graph.nodes if node.name in names])

    @cached_property
    def unused(self) -> tuple[Node, ...]:
        """Nodes of the computation that nothing needs."""
        reached = {node.name for node in self.reached}
        return tuple(node for node in self.graph.nodes if BODY in node.attrs and node.name not in reached)

    def forms(self) -> Mapping[str, Hashable]:
        """Node → its op, attributes, device, and the forms of its inputs; equal ones do the same."""
        forms: dict[str, Hashable] = {}
        for node in self.reached:
            if not (is_passing(node) or is_empty_group(node)):
                forms[node.name] = self._form(node, forms)
        return forms

    def _form(self, node: Node, forms: Mapping[str, Hashable]) -> Hashable:
        if node.op == "TPUReplicatedInput":
            data: Sequence[Hashable] = [self._source(ref) for ref in node.data_inputs]
        else:
            refs = [self._given(ref) for ref in node.data_inputs]
            data = [(forms[producer(ref)], output_index(ref)) for ref in refs]
        waits = (name for name in node.control_inputs if not is_empty_group(self.graph.by_name[name]))
        form = (
            node.op,
            node.device,
            tuple(_attrs(node)),
            frozenset(Counter(data).items()) if node.op in EITHER_ORDER else tuple(data),
            frozenset(forms[name] for name in waits),
        )
        # A number in place of a form in a form in a form.
        return _numbers.setdefault(form, f"{node.op} {len(_numbers)}")

    def _given(self, ref: str) -> str:
        """The tensor that a reference stands for, where it was not only handed on."""
        node = self.graph.by_name[producer(ref)]
        return self._given(node.data_inputs[output_index(ref)]) if is_passing(node) else ref

    def _source(self, ref: str) -> Hashable:
        """Inputs of one replica: its copy of a variable, or its examples of a component."""
        if ref in self.handles:
            return self.handles[ref]
        placeholders = ancestors(self.graph, [producer(ref)]) & set(self.fed)
        (component,) = {self.fed[name] for name in placeholders}
        return component


_numbers: dict[Hashable, str] = {}


def is_passing(node: Node) -> bool:
    """True if a node only passes a value on: ours are at boundaries, TensorFlow's where people write them."""
    marks = ("_tpu_input_identity", "_tpu_output_identity")
    return (
        node.op in ("Identity", "IdentityN")
        and BODY in node.attrs
        and not node.control_inputs
        and not any(mark in node.attrs for mark in marks)
    )


def is_empty_group(node: Node) -> bool:
    """True if a node is TensorFlow's addition that makes a step without updates run when fetched.

    In ours every output waits for the updates, in one group that is always there.
    """
    return node.op == "NoOp" and BODY in node.attrs and len(node.inputs) == 1 and "pivot" in node.inputs[0]


def _attrs(node: Node) -> Iterator[tuple[str, Hashable]]:
    for name, value in sorted(node.attrs.items()):
        if name in CLUSTER:
            yield name, "of the computation"
        elif isinstance(value, TensorValue):
            array = constant_array(node)
            assert array is not None
            yield name, (array.dtype.str, array.shape, array.tobytes())
        elif name not in IGNORED_ATTRS:
            yield name, value


def of_ours(step: TrainGraph, names: Sequence[str]) -> Computation:
    """Computation that the pass has built.

    Args:
        names: names of the variables.
    """
    nodes = step.graph.nodes
    handles = {
        node.name: (node.attrs["shared_name"].decode().split("/", 1)[1], int(node.name.split("/")[0][8:]))
        for node in nodes
        if node.op == "VarHandleOp"
    }
    known = {f"variables/{name}": name for name in names}
    fed_here = [b.node for b in step.batch]
    return Computation(
        graph=step.graph,
        handles={node: (known[name], rank) for node, (name, rank) in handles.items()},
        fed={
            node.name: component
            for node in nodes
            for component, name in enumerate(fed_here)
            if node.op == "Placeholder" and (node.name == name or node.name.endswith(f"/{name}"))
        },
        results=_results(nodes),
    )


class Replicated:
    """Makes variables with a copy for each replica, wherever any are made, as a TPUStrategy's scope does."""

    def __init__(self, n_replicas: int) -> None:
        self._n_replicas = n_replicas
        self.copies: dict[str, list[tf.Variable]] = {}

    def make(self, next_creator: Callable[..., tf.Variable], **options: object) -> TPUMirroredVariable:
        """The creator of a scope."""
        copies = [next_creator(**options) for _ in range(self._n_replicas)]
        self.copies[copies[0].name.removesuffix(":0")] = copies
        return TPUMirroredVariable(tf.distribute.get_strategy(), copies, tf.VariableAggregation.NONE)


def of_tensorflow(
    step: Callable[..., tf.Tensor], specs: Sequence[tf.TensorSpec], replicated: Replicated, n_replicas: int
) -> Computation:
    """Computation that TensorFlow's builder makes of a step.

    Args:
        step: function of the components of a batch; it updates variables and returns the loss.
        specs: specifications of a replica's components.
    """

    def computation(*batch: tf.Tensor) -> tuple[tf.Tensor, tf.Operation]:
        with tf.variable_creator_scope(replicated.make):
            loss = step(*batch)
        operations = v1.get_default_graph().get_operations()
        return loss, tf.group(*(op for op in operations if op.type in UPDATES))

    @tf.function
    def replicate(*batches: tf.Tensor) -> object:
        by_component = [batches[i * n_replicas : (i + 1) * n_replicas] for i in range(len(specs))]
        return v1.tpu.replicate(computation, [list(batch) for batch in zip(*by_component, strict=True)])

    graph = replicate.get_concrete_function(*(spec for spec in specs for _ in range(n_replicas))).graph
    copies = {
        id(copy.handle): (name, rank)
        for name, own in replicated.copies.items()
        for rank, copy in enumerate(own)
    }
    captured = {inside.op.name: copies.get(id(outside)) for outside, inside in graph.captures}
    names = [tensor.op.name for tensor in graph.inputs if tensor.op.name not in captured]
    converted = graph_from_graphdef(graph.as_graph_def())
    return Computation(
        graph=converted,
        handles={node: copy for node, copy in captured.items() if copy is not None},
        fed={node: place // n_replicas for place, node in enumerate(names)},
        results=_results(converted.nodes),
    )


def _results(nodes: Sequence[Node]) -> list[str]:
    outputs = {node.name for node in nodes if node.op == "TPUReplicatedOutput"}
    shards = [node.name for node in nodes if node.data_inputs and producer(node.data_inputs[0]) in outputs]
    return [*shards, *(node.name for node in nodes if node.op == "TPUCompilationResult")]
