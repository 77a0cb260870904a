"""Capture: a single-device train step, traced once, becomes a `TrainGraph` and initial values beside it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import keras
import numpy as np
import tensorflow as tf

from strategies.errors import CaptureError
from strategies.ir.assemble import assemble
from strategies.ir.graph import DType, Graph, Node, Shape, TensorValue
from strategies.ir.traced import TracedInput, TracedStep, TracedVariable
from strategies.ir.train_graph import TrainGraph
from strategies.tf_bridge.attrs import dtype_of
from strategies.tf_bridge.boundary import BoundaryRecorder, raw_variable, variable_name
from strategies.tf_bridge.graphdef import graph_from_graphdef
from strategies.tf_bridge.op_types import op_definition

MAX_CONSTANT_BYTES = 1 << 20


@runtime_checkable
class CapturableStep(Protocol):
    """What a step offers for capture; `workloads.TrainStep` satisfies it."""

    @property
    def loss(self) -> Callable[[Any], Any]:
        """Batch → scalar mean loss."""

    @property
    def variables(self) -> Sequence[Any]:
        """Trainable variables."""

    @property
    def optimizer(self) -> Any:
        """A Keras optimizer."""

    @property
    def clip_global_norm(self) -> float | None:
        """Norm to which all aggregated gradients together are clipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A captured step and the initial value of every variable by name."""

    step: TrainGraph
    initial: Mapping[str, np.ndarray[Any, Any]]


def capture(
    step: CapturableStep | Callable[[Any], Any], element_spec: Any, *, replica_batch: int | None = None
) -> Captured:
    """Trace a train step once and take it apart.

    Args:
        step: loss, variables and optimizer, or a whole `tf.function` train step that returns the scalar loss.
        element_spec: structure of `tf.TensorSpec` of one example, without the batch axis.
        replica_batch: examples in every replica's shard if they are equal; used when the model needs a fixed batch.
    Raises:
        CaptureError: when the step takes no gradient, its loss is not a scalar, or its parts cannot be told apart.
    """
    recorder = BoundaryRecorder()
    if isinstance(step, CapturableStep):
        body, declared = _train_function(step, recorder), _declared(step)
    else:
        body, declared = _python_function(step), []
    concrete = _trace(body, element_spec, recorder, replica_batch)
    if not recorder.marks:
        raise CaptureError(
            "train step: the loss must depend on a trainable variable, got no gradient for any; compute it from the "
            "variables inside `loss`, and take the gradient with tf.GradientTape"
        )
    return _take_apart(concrete, recorder, declared, element_spec)


def _declared(step: CapturableStep) -> list[Any]:
    variables = [raw_variable(v) for v in step.variables]
    if not variables:
        raise CaptureError(
            "train step: `variables` must name a trainable variable, got none; pass the model's"
        )
    for variable in variables:
        if not isinstance(variable, tf.Variable):
            raise CaptureError(
                f"train step: `variables` must hold tf.Variable or keras.Variable, got {type(variable).__name__}"
            )
    return [*step.variables, *step.optimizer.variables]


def _train_function(step: CapturableStep, recorder: BoundaryRecorder) -> Callable[[Any], Any]:
    variables = list(step.variables)

    def train(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = step.loss(batch)
            _check_loss(loss, recorder)
            scaled = step.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, [raw_variable(v) for v in variables])
        used = [(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None]
        if step.clip_global_norm is not None and used:
            clipped, _ = tf.clip_by_global_norm([g for g, _ in used], step.clip_global_norm)
            used = [(g, v) for g, (_, v) in zip(clipped, used, strict=True)]
        if used:
            step.optimizer.apply([g for g, _ in used], [v for _, v in used])
        return loss

    return train


def _python_function(step: Any) -> Callable[[Any], Any]:
    python_function = getattr(step, "python_function", None)
    if python_function is None:
        raise CaptureError(
            "train step: must be a TrainStep (loss, variables, optimizer) or a tf.function, got "
            f"{type(step).__name__}; return one of them from train_step()"
        )
    return python_function  # type: ignore[no-any-return]


def _check_loss(loss: Any, recorder: BoundaryRecorder) -> None:
    if not tf.is_tensor(loss) or not loss.dtype.is_floating or loss.shape.rank != 0:
        got = f"{loss.dtype.name} of shape {loss.shape}" if tf.is_tensor(loss) else type(loss).__name__
        recorder.fail(
            f"train step: the loss must be a floating scalar, got {got}; take its mean over the batch"
        )


def _trace(
    body: Callable[[Any], Any], element_spec: Any, recorder: BoundaryRecorder, replica_batch: int | None
) -> Any:
    def step(batch: Any) -> Any:
        recorder.begin(tf.compat.v1.get_default_graph())
        loss = body(batch)
        _check_loss(loss, recorder)
        marked = tf.identity(loss, name="loss")
        # What the function returns waits for every update; the loss itself must not.
        recorder.loss = marked.name
        return marked

    def trace(size: int | None) -> Any:
        specs = tf.nest.map_structure(lambda s: tf.TensorSpec((size, *s.shape), s.dtype), element_spec)
        with recorder.recording():
            return tf.function(step).get_concrete_function(specs)

    sizes = (None,) if replica_batch is None else (None, replica_batch)
    for size in sizes:
        try:
            return trace(size)
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything; it becomes one line
            if recorder.failure is not None:
                raise recorder.failure from None
            if size == sizes[-1]:
                reason = next(
                    (line for line in reversed(str(error).splitlines()) if line.strip()), "no message"
                ).strip()
                raise CaptureError(
                    f"train step: tracing it raised {type(error).__name__}: {reason}"
                ) from error
    raise AssertionError("the last size returns or raises")


def _take_apart(
    concrete: Any, recorder: BoundaryRecorder, declared: Sequence[Any], element_spec: Any
) -> Captured:
    known = {id(v.handle): v for v in concrete.graph.variables}
    placeholders: dict[int, str] = {}
    constants: dict[str, Node] = {}
    for external, internal in concrete.graph.captures:
        if id(external) in known:
            placeholders[id(external)] = internal.op.name
        else:
            constants[internal.op.name] = _constant(internal.op.name, external)
    owned = {id(raw_variable(v)) for optimizer in recorder.optimizers for v in optimizer.variables}
    paths = {id(raw_variable(v)): variable_name(v) for v in [*declared, *_optimizer_variables(recorder)]}
    found = {id(v.handle): v for v in [*map(raw_variable, declared), *known.values()]}
    # EagerTensors are numbered as they are made; tf.Variable has no public creation order.
    ordered = sorted(found.values(), key=lambda v: v.handle._id)  # noqa: SLF001
    names = _unique([paths.get(id(v), variable_name(v)) for v in ordered])
    by_handle = {id(v.handle): name for v, name in zip(ordered, names, strict=True)}
    specs = tf.nest.flatten(element_spec)
    step = assemble(
        TracedStep(
            graph=(graph := graph_from_graphdef(concrete.graph.as_graph_def())),
            stateful_ops=_stateful_ops(graph),
            constants=constants,
            variables=tuple(
                TracedVariable(
                    name=name,
                    placeholder=placeholders.get(id(v.handle)),
                    dtype=_dtype(v.dtype),
                    shape=_shape(v.shape),
                    trainable=bool(v.trainable) and id(v) not in owned,
                    optimizer_owned=id(v) in owned,
                )
                for v, name in zip(ordered, names, strict=True)
            ),
            marks=tuple(mark.named(by_handle[id(mark.handle)]) for mark in recorder.marks),
            batch=tuple(
                TracedInput(
                    path=path, node=tensor.op.name, dtype=_dtype(tensor.dtype), shape=_shape(tensor.shape)
                )
                for path, tensor in zip(_paths(element_spec), concrete.inputs[: len(specs)], strict=True)
            ),
            loss=recorder.loss,
            must_run=tuple(op.name for op in concrete.graph.control_outputs),
        )
    )
    return Captured(step=step, initial={n: v.numpy() for v, n in zip(ordered, names, strict=True)})


def _optimizer_variables(recorder: BoundaryRecorder) -> list[Any]:
    return [v for optimizer in recorder.optimizers for v in optimizer.variables]


def _unique(names: Sequence[str]) -> list[str]:
    seen: dict[str, int] = {}
    unique = []
    for name in names:
        count = seen[name] = seen.get(name, -1) + 1
        unique.append(f"{name}__{count}" if count else name)
    return unique


def _paths(element_spec: Any) -> list[str]:
    flat = keras.tree.flatten_with_path(element_spec)
    return ["/".join(str(part) for part in path) or "0" for path, _ in flat]


def _constant(name: str, external: Any) -> Node:
    if external.dtype in (tf.resource, tf.variant):
        raise CaptureError(
            f"train step: captured resources must be variables, got {name!r} of type {external.dtype.name}; "
            "make tables and iterators part of the dataset instead"
        )
    value = external.numpy()
    if value.nbytes > MAX_CONSTANT_BYTES:
        raise CaptureError(
            f"train step: a captured constant may hold {MAX_CONSTANT_BYTES} bytes, got {name!r} with {value.nbytes}; "
            "make it a tf.Variable with trainable=False"
        )
    proto = tf.make_tensor_proto(value, dtype=external.dtype)
    return Node(
        name=name,
        op="Const",
        attrs={"dtype": _dtype(external.dtype), "value": TensorValue(proto.SerializeToString())},
    )


def _dtype(dtype: Any) -> DType:
    return dtype_of(tf.as_dtype(dtype).as_datatype_enum)


def _shape(shape: Any) -> Shape:
    return Shape(None if shape.rank is None else tuple(-1 if d is None else int(d) for d in shape.as_list()))


def _stateful_ops(graph: Graph) -> frozenset[str]:
    ops = {node.op for nodes in (graph.nodes, *(f.nodes for f in graph.functions.values())) for node in nodes}
    return frozenset(op for op in ops if (known := op_definition(op)) is not None and known.is_stateful)
