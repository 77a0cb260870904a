"""Capture of a single-device train step as a `TrainGraph` with initial values; refusals."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from strategies.capture.hooks import lines_of
from strategies.capture.traced_step import trace_contents
from strategies.capture.tracing import AnyVariable, CapturableStep, Trace, body_of, trace
from strategies.errors import CaptureError
from strategies.ir.assembly.assemble import assemble
from strategies.ir.assembly.traced import TracedStep
from strategies.ir.graph import Graph, Node, Shape
from strategies.ir.train_graph import BatchInput, Reduction, TrainGraph
from strategies.ir.traversal import prune
from strategies.ir.variable import Rule
from strategies.passes.replicate.hoist_reads import calls_with_values
from strategies.plan.schema import Rows
from strategies.tf_bridge.snippet import static_specs

_FEW, _MORE = 2, 3
"""Examples of two batches whose rows are on a line; of a single one, some models remove the axis."""


def rows_of(step: TracedStep) -> dict[str, Rows]:
    """Variable → rows of its sparse gradient, if static shapes determine them."""
    sizes = {part.shape.dims[0] for part in step.batch if part.shape.dims}
    if len(sizes) != 1 or all(mark.indices is None for mark in step.marks):
        return {}
    (size,) = sizes
    if size > 0:
        return {variable: Rows(n / size) for variable, n in _row_counts(step, size).items()}
    few, more = _row_counts(step, _FEW), _row_counts(step, _MORE)
    rows: dict[str, Rows] = {}
    for variable in few.keys() & more.keys():
        per_example = (more[variable] - few[variable]) / (_MORE - _FEW)
        rows[variable] = Rows(per_example, few[variable] - _FEW * per_example)
    return {variable: own for variable, own in rows.items() if min(own) >= 0}


def _row_counts(step: TracedStep, n_examples: int) -> dict[str, int]:
    """Variable → rows of its sparse gradient in a batch of this size, if static shapes determine them."""
    indices = {mark.indices for mark in step.marks if mark.indices is not None}
    shapes = _shapes(prune(_with_batch_size(step.graph, step.batch, n_examples), indices))
    rows: dict[str, int] = {}
    unknown: set[str] = set()
    for mark in step.marks:
        dims = None if mark.indices is None else shapes.get(mark.indices)
        if dims is None or len(dims) != 1 or dims[0] < 0:
            unknown.add(mark.variable)
        else:
            rows[mark.variable] = rows.get(mark.variable, 0) + dims[0]
    return {variable: n for variable, n in rows.items() if variable not in unknown}


def _with_batch_size(graph: Graph, batch: Sequence[BatchInput], n_examples: int) -> Graph:
    inputs = {part.node: part.shape.dims for part in batch}

    def sized(node: Node) -> Node:
        dims = inputs.get(node.name)
        if not dims:
            return node
        return node.changed(attrs={**node.attrs, "shape": Shape((n_examples, *dims[1:]))})

    return graph.with_nodes(map(sized, graph.nodes))


def _shapes(graph: Graph) -> Mapping[str, tuple[int, ...] | None]:
    try:
        return {ref: spec.shape.dims for ref, spec in static_specs(graph).items()}
    except ValueError:
        return {}  # a batch of this size contradicts a shape


Array: TypeAlias = np.ndarray[Any, Any]
_PYTHON_OPS = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A captured step.

    Attributes:
        initial: variable → value before the first step.
        variables: name → variable of the user; captured constants have none.
        returns_loss: True if the step's loss is the tensor that the user's step returns.
        rows: variable → rows of its sparse gradient, if static shapes determine them.
        scales_loss: True if an optimizer unscales gradients and skips those that are not finite.
        lines: node → line of the user's file that created it.
    """

    step: TrainGraph
    initial: Mapping[str, Array]
    variables: Mapping[str, tf.Variable]
    returns_loss: bool
    rows: Mapping[str, Rows]
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
        replica_batch: examples per shard if all shards are equal, for a model with a fixed batch size; None
            otherwise.
        compiled_rules: name of forward state → its rule in a capture with a free batch axis. If given, the
            trace has the shards' batch size and known shapes, as XLA requires; counts of examples then look
            constant.
    Raises:
        CaptureError: the step uses no gradient, has no scalar loss or inseparable parts, or calls Python
            code.
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
        rows=rows_of(contents.step),
        lines=lines_of(traced.concrete.graph),
        scales_loss=any(
            isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
            for optimizer in traced.recorder.optimizers
        ),
    )


@contextmanager
def _naming_vectorized(traced: Trace) -> Iterator[None]:
    """Name per-row gradients as the cause of a failed capture."""
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
    """Variables that a step itself declares."""
    if isinstance(step, CapturableStep):
        return [*step.variables, *step.optimizer.variables]
    return []


def _reduction(step: CapturableStep | Callable[[object], tf.Tensor]) -> Reduction:
    return step.reduction if isinstance(step, CapturableStep) else "mean"


def _check_travels(graph: Graph) -> None:
    """Refuse operations that only this process could run."""
    bodies = [("", graph.nodes), *((f"{f.name}/", f.nodes) for f in graph.functions.values())]
    for within, node in ((within, node) for within, nodes in bodies for node in nodes):
        if node.op in _PYTHON_OPS:
            raise CaptureError(
                f"train step: Python code cannot run on workers, got {node.op} {node.name!r}; use "
                "TensorFlow's operations (tf.print, tf.summary, a Keras metric), or the dataset",
                node=within + node.name,
            )


def _notes(not_fetched: Sequence[str]) -> tuple[str, ...]:
    if not not_fetched:
        return ()
    return (f"not fetched, because they are not dense tensors: {', '.join(not_fetched)}; return tensors",)
