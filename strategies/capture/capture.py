"""Capture of a single-device train step as a `TrainGraph` with initial values."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from strategies.capture.hooks import lines_of
from strategies.capture.traced_step import trace_contents
from strategies.capture.tracing import AnyVariable, CapturableStep, Trace, body_of, trace
from strategies.errors import CaptureError
from strategies.ir.assembly.assemble import assemble
from strategies.ir.assembly.traced import TracedGradient, TracedStep
from strategies.ir.graph import DType, Graph, Node, Shape
from strategies.ir.ops import op_set
from strategies.ir.train_graph import BatchInput, Reduction, TrainGraph
from strategies.ir.traversal import prune
from strategies.ir.variable import Rule
from strategies.passes.replicate.hoist_reads import calls_with_values
from strategies.tf_bridge.graphdef import graphdef_from_graph


def rows_per_example(step: TracedStep) -> dict[str, float]:
    """Variable → rows of its sparse gradient per example, where static shapes say so."""
    sparse = [mark for mark in step.marks if mark.indices is not None]
    sizes = {part.shape.dims[0] for part in step.batch if part.shape.dims}
    if not sparse or len(sizes) != 1:
        return {}
    n_examples = max(1, *sizes)  # -1 where the batch axis is free
    lengths = _lengths(step.graph, step.batch, sparse, n_examples)
    rows: dict[str, float] = {}
    unknown: set[str] = set()
    for mark in step.marks:
        length = lengths.get(mark.values)
        if length is None:
            unknown.add(mark.variable)
        else:
            rows[mark.variable] = rows.get(mark.variable, 0.0) + length / n_examples
    return {variable: n for variable, n in rows.items() if variable not in unknown}


def _lengths(
    graph: Graph, batch: Sequence[BatchInput], sparse: Sequence[TracedGradient], n_examples: int
) -> Mapping[str, int | None]:
    indices = {mark.values: mark.indices for mark in sparse if mark.indices is not None}
    inputs = {part.node: part.shape for part in batch}

    def sized(node: Node) -> Node:
        dims = inputs[node.name].dims if node.name in inputs else None
        if not dims:
            return node
        return node.changed(attrs={**node.attrs, "shape": Shape((n_examples, *dims[1:]))})

    needed = prune(graph, indices.values())
    with tf.Graph().as_default() as inferred:
        try:
            tf.graph_util.import_graph_def(
                graphdef_from_graph(needed.with_nodes(map(sized, needed.nodes))), name=""
            )
        except ValueError:
            return {}  # shapes that a batch of this size contradicts
        shapes = {values: inferred.get_tensor_by_name(f"{node}:0").shape for values, node in indices.items()}
    return {values: shape[0] if shape.rank == 1 else None for values, shape in shapes.items()}


Array: TypeAlias = np.ndarray[Any, Any]
_PYTHON_OPS = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A captured step.

    Attributes:
        initial: variable → its value before the first step.
        variables: name → the user's variable; captured constants have none.
        returns_loss: the step's loss is the tensor that the user's step returns.
        rows_per_example: variable → rows of its sparse gradient per example, where static shapes say so.
        scales_loss: an optimizer unscales gradients and skips those that are not finite.
        lines: node → the line of the user's file that made it.
    """

    step: TrainGraph
    initial: Mapping[str, Array]
    variables: Mapping[str, tf.Variable]
    returns_loss: bool
    rows_per_example: Mapping[str, float]
    lines: Mapping[str, str]
    scales_loss: bool = False


def capture(
    step: CapturableStep | Callable[[object], tf.Tensor],
    element_spec: object,
    *,
    replica_batch: int | None = None,
    compiled_rules: Mapping[str, Rule] | None = None,
) -> Captured:
    """Trace a train step once and assemble its `TrainGraph`.

    Args:
        step: loss, variables and optimizer, or a `tf.function` that trains and returns the scalar loss,
            alone, under the key `loss` of a mapping, or first of several results.
        element_spec: structure of `tf.TensorSpec` of one example, without the batch axis.
        replica_batch: examples in each shard if all are equal, for a model that needs a fixed batch.
        compiled_rules: name of forward state → its rule from a capture with a free batch axis. With them the
            trace has the shards' batch size and known shapes, as XLA needs; counts of examples look constant.
    Raises:
        CaptureError: no gradient that it uses, no scalar loss, inseparable parts, or a call of Python.
    """
    body = body_of(step)
    traced = trace(body, element_spec, replica_batch=replica_batch, compilable=compiled_rules is not None)
    with _naming_vectorized(traced), _naming_lines(traced):
        contents = trace_contents(traced, declared_variables(step), element_spec)
        rules = {**contents.step.rules, **(compiled_rules or {})}
        step_contents = replace(contents.step, reduction=_reduction(step), rules=rules)
        contents = replace(contents, step=step_contents)
        assembled = assemble(contents.step, calls_with_values)
        _check_travels(assembled.graph)
    return Captured(
        step=replace(assembled, notes=(*assembled.notes, *_notes(traced.recorder.not_fetched))),
        initial=contents.initial,
        variables=contents.variables,
        returns_loss=assembled.losses[0].tensor == traced.recorder.loss,
        rows_per_example=rows_per_example(contents.step),
        lines=lines_of(traced.concrete.graph),
        scales_loss=any(
            isinstance(each, keras.optimizers.LossScaleOptimizer) for each in traced.recorder.optimizers
        ),
    )


@contextmanager
def _naming_vectorized(traced: Trace) -> Iterator[None]:
    """Blame per-row gradients for a step that cannot be captured."""
    try:
        yield
    except CaptureError as error:
        if not traced.recorder.vectorized:
            raise
        variable, line = traced.recorder.vectorized[0]
        raise CaptureError(
            f"train step: gradients must be taken of a whole batch, got variable {variable!r} differentiated "
            "row by row, inside tf.vectorized_map or by tape.jacobian; take one gradient of the mean of all "
            "rows' losses, outside of it" + (f" ({line})" if line else "")
        ) from error


@contextmanager
def _naming_lines(traced: Trace) -> Iterator[None]:
    try:
        yield
    except CaptureError as error:
        line = lines_of(traced.concrete.graph).get(error.node or "")
        if line is None:
            raise
        raise CaptureError(f"{error} ({line})", node=error.node) from error


def declared_variables(step: CapturableStep | Callable[[object], tf.Tensor]) -> list[AnyVariable]:
    """Variables that a step itself names."""
    if isinstance(step, CapturableStep):
        return [*step.variables, *step.optimizer.variables]
    return []


def _reduction(step: CapturableStep | Callable[[object], tf.Tensor]) -> Reduction:
    return step.reduction if isinstance(step, CapturableStep) else "mean"


def _check_travels(graph: Graph) -> None:
    """Refuse what only this process could run."""
    bodies = [("", graph.nodes), *((f"{f.name}/", f.nodes) for f in graph.functions.values())]
    for within, node in ((within, node) for within, nodes in bodies for node in nodes):
        if node.op in _PYTHON_OPS:
            raise CaptureError(
                f"train step: code of Python's own cannot travel to workers, got {node.op} {node.name!r}; "
                "use TensorFlow's operations (tf.print, tf.summary, a Keras metric), or compute it in "
                "dataset()",
                node=within + node.name,
            )


def _notes(not_fetched: Sequence[str]) -> tuple[str, ...]:
    if not not_fetched:
        return ()
    return (f"not fetched, for it is no dense tensor: {', '.join(not_fetched)}; return a tensor of it",)


# Products of matrices and convolutions, with what their gradients are made of.
_PRODUCTS = op_set("""
    BatchMatMul BatchMatMulV2 BatchMatMulV3 Conv2D Conv2DBackpropFilter Conv2DBackpropInput Conv3D
    Conv3DBackpropFilterV2 Conv3DBackpropInputV2 DepthwiseConv2dNative
    DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput Einsum MatMul
""")
_ELEMENTWISE = op_set("""
    AddV2 BiasAdd Exp Mean Mul RealDiv Relu Sigmoid Softmax Square Sub Sum Tanh
""")


def types_of_products(graph: Graph) -> Mapping[DType, int]:
    """Type → number of matrix products and convolutions in it; of elementwise ops if there are none."""
    return Counter(_types(graph, _PRODUCTS)) or Counter(_types(graph, _ELEMENTWISE))


def _types(graph: Graph, ops: frozenset[str]) -> Iterator[DType]:
    nodes: Iterator[Node] = chain(graph.nodes, *(function.nodes for function in graph.functions.values()))
    for node in nodes:
        dtype = node.attrs.get("T")
        if node.op in ops and isinstance(dtype, DType):
            yield dtype
