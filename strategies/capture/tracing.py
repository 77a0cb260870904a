"""Tracing of a step: the user's code runs once as a graph, with gradients recorded."""

import inspect
import itertools
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar, runtime_checkable

import keras
import tensorflow as tf
from tensorflow.types.experimental import ConcreteFunction

from strategies.capture.boundary import BoundaryRecorder, raw_variable
from strategies.capture.hooks import FixedBatchError, line_of_operation
from strategies.errors import CaptureError
from strategies.ir.train_graph import Reduction
from strategies.user_errors import described

Returned = TypeVar("Returned")


def called_on(function: Callable[..., Returned], batch: object) -> Returned:
    """Call a function on a batch, or on the parts of the batch if it has several arguments without defaults.

    Raises:
        CaptureError: the number of arguments differs from the number of parts.
    """
    args, kwargs = arguments_of(function, batch)
    return function(*args, **kwargs)


def arguments_of(
    function: Callable[..., object], batch: object
) -> tuple[tuple[object, ...], Mapping[str, object]]:
    """Positional and keyword arguments with which a function takes a batch; errors as in `called_on`."""
    names = _needed(function)
    if len(names) < 2:
        return (batch,), {}
    if isinstance(batch, Mapping) and set(batch) == set(names):
        return (), batch
    if isinstance(batch, tuple) and len(batch) == len(names):
        return batch, {}
    raise CaptureError(
        f"train step: must take a batch, or its parts as arguments, got the arguments {', '.join(names)} for "
        f"{_described(batch)}; let it take the batch alone and unpack that"
    )


def _needed(function: Callable[..., object]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []  # Not written in Python.
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]


def _described(batch: object) -> str:
    if isinstance(batch, Mapping):
        return f"the keys {', '.join(sorted(map(str, batch)))}"
    return f"a tuple of {len(batch)}" if isinstance(batch, tuple) else "a tensor"


AnyVariable: TypeAlias = tf.Variable | keras.Variable


@runtime_checkable
class CapturableStep(Protocol):
    """Step as its author declares it; `workloads.TrainStep` satisfies it."""

    @property
    def loss(self) -> Callable[[object], tf.Tensor]: ...

    @property
    def variables(self) -> Sequence[AnyVariable]: ...

    @property
    def optimizer(self) -> keras.optimizers.Optimizer: ...

    @property
    def clip_global_norm(self) -> float | None: ...

    @property
    def reduction(self) -> Reduction: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A traced step and the records made while tracing."""

    concrete: ConcreteFunction
    recorder: BoundaryRecorder


Body = Callable[[object, BoundaryRecorder], object]
"""The step as ordinary code: batch → its return value, a scalar loss or None."""


def body_of(step: CapturableStep | Callable[[object], tf.Tensor]) -> Body:
    """Return the code to trace.

    Raises:
        CaptureError: the step is neither a TrainStep with variables and a Keras optimizer nor a tf.function.
    """
    if isinstance(step, CapturableStep):
        _check_parts(step)
        return _composed(step)
    python_function = getattr(step, "python_function", None)
    if python_function is None:
        if inspect.isroutine(step):
            raise CaptureError(
                f"train step: must be a tf.function, got the plain function {step.__name__}; decorate it "
                "with @tf.function"
            )
        raise CaptureError(
            "train step: must be a TrainStep, a compiled Keras model or a tf.function, got "
            f"{type(step).__name__}; return one of them from train_step()"
        )
    return lambda batch, recorder: _loss_among(called_on(python_function, batch), recorder)


def _loss_among(returned: object, recorder: BoundaryRecorder) -> object:
    if isinstance(returned, Mapping) and ("loss" in returned or recorder.targets.targets):
        loss, others = returned.get("loss"), {str(key): v for key, v in returned.items() if key != "loss"}
    elif isinstance(returned, tuple | list) and returned:
        loss, others = returned[0], {f"[{k}]": v for k, v in enumerate(returned) if k > 0}
    else:
        return returned
    not_fetched = []
    for path, value in keras.tree.flatten_with_path(others):
        name = unique_name("/".join(map(str, path)), recorder.results)
        if isinstance(value, tf.Tensor) and value.dtype not in (tf.resource, tf.variant):
            recorder.results[name] = tf.identity(value, name=f"result_{len(recorder.results)}")
        else:
            not_fetched.append(name)
    recorder.not_fetched = tuple(not_fetched)
    return loss


def unique_name(name: str, reserved: Container[str]) -> str:
    """The name, with the first free number appended if it is taken."""
    numbered = (f"{name}__{k}" for k in itertools.count(1))
    return (
        name
        if name not in reserved
        else next(candidate for candidate in numbered if candidate not in reserved)
    )


def _check_parts(step: CapturableStep) -> None:
    variables = list(step.variables)
    if not variables:
        raise CaptureError(
            "train step: `variables` must name a trainable variable, got none; pass the model's "
            "trainable_variables"
        )
    for variable in variables:
        if not isinstance(variable, AnyVariable):
            raise CaptureError(
                "train step: `variables` must hold tf.Variable or keras.Variable, got "
                f"{type(variable).__name__}; pass the model's trainable_variables"
            )
    if not isinstance(step.optimizer, keras.optimizers.Optimizer):
        raise CaptureError(
            f"train step: `optimizer` must be a Keras optimizer, got {type(step.optimizer).__name__}; use "
            "keras.optimizers, or write a whole step as a tf.function"
        )
    if not step.optimizer.built:
        step.optimizer.build(variables)


def _composed(step: CapturableStep) -> Body:
    variables = list(step.variables)

    def train(batch: object, recorder: BoundaryRecorder) -> tf.Tensor:
        recorder.applied(step.optimizer)
        with tf.GradientTape() as tape:
            loss = _checked_loss(called_on(step.loss, batch), recorder)
            scaled = step.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, [raw_variable(v) for v in variables])
        if all(gradient is None for gradient in gradients):
            return loss
        if step.clip_global_norm is not None:
            gradients, _ = tf.clip_by_global_norm(
                gradients, _scaled_norm(step.optimizer, step.clip_global_norm)
            )
        # None for variables on which the loss does not depend: a MultiOptimizer needs one gradient per
        # variable.
        step.optimizer.apply(gradients, variables)
        return loss

    return train


def _scaled_norm(optimizer: keras.optimizers.Optimizer, norm: float) -> float | tf.Tensor:
    """Clipping norm in units of scaled gradients."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return norm * tf.convert_to_tensor(optimizer.dynamic_scale)
    return norm * (optimizer.loss_scale_factor or 1.0)


def _checked_loss(loss: object, recorder: BoundaryRecorder) -> tf.Tensor:
    if not isinstance(loss, tf.Tensor):
        got, way_out = type(loss).__name__, "return the loss alone, as a tensor"
    elif not loss.dtype.is_floating or loss.shape.rank != 0:
        got, way_out = f"{loss.dtype.name} of shape {loss.shape}", "take its mean over the batch"
    else:
        return loss
    # A tensor from outside of the trace has no operation.
    operation = getattr(loss, "op", None) if tf.is_symbolic_tensor(loss) else None
    line = "" if operation is None else line_of_operation(operation)
    at = f" ({line})" if line else ""
    return recorder.fail(f"train step: the loss must be a floating scalar, got {got}; {way_out}{at}")


def trace(body: Body, element_spec: object, *, replica_batch: int | None, compilable: bool = False) -> Trace:
    """Trace with a free batch axis, or with a fixed one if the code requires it.

    Args:
        replica_batch: examples per shard, None if shards differ.
        compilable: True to trace for XLA if shards are equal: with all shapes known and loops bounded.
    Raises:
        CaptureError: the user's code raised, or a layer requires another batch size.
    """
    try:
        if compilable and replica_batch is not None:
            return trace_sized(body, element_spec, replica_batch, compilable=True)
        return trace_sized(body, element_spec, None)
    except FixedBatchError as failure:
        if failure.n_examples != replica_batch:
            raise failure.of_shards(replica_batch) from None
        return trace_sized(body, element_spec, replica_batch)
    except CaptureError as failure:
        try:
            fixed = trace_sized(body, element_spec, replica_batch or 2)
        except CaptureError:
            raise failure from failure.__cause__
    if replica_batch is None:
        raise CaptureError(
            "train step: the model needs a fixed batch size, got shards of different sizes; choose a batch "
            "size that the number of replicas divides"
        )
    return fixed


def trace_sized(body: Body, element_spec: object, size: int | None, *, compilable: bool = False) -> Trace:
    """Trace with this batch size, None for a free axis; errors as in `trace`."""
    recorder = BoundaryRecorder(n_examples=size)

    def step(batch: object) -> tf.Tensor | None:
        recorder.begin(tf.compat.v1.get_default_graph())
        try:
            returned = body(batch, recorder)
        except CaptureError as failure:
            recorder.failure = recorder.failure or failure
            raise
        if returned is None and recorder.targets.targets:
            return None  # Its gradients are those of its loss.
        loss = _checked_loss(returned, recorder)
        marked = tf.identity(loss, name="loss")
        # Returned values wait for every update; the loss must not.
        recorder.loss = marked.name
        return marked

    specs = tf.nest.map_structure(lambda s: tf.TensorSpec((size, *s.shape), s.dtype), element_spec)
    try:
        with recorder.recording():
            traced = tf.function(step, jit_compile=compilable or None).get_concrete_function(specs)
            return Trace(concrete=traced, recorder=recorder)
    except Exception as error:
        if recorder.failure is not None:
            raise recorder.failure from None
        raise CaptureError(f"train step: tracing it raised {described(error)}") from error


def with_effects(concrete: ConcreteFunction) -> tuple[tf.Operation, ...]:
    """Operations that a function runs although no result needs them, in order of creation."""
    names = {op.name for op in concrete.graph.control_outputs}
    return tuple(op for op in concrete.graph.get_operations() if op.name in names)
