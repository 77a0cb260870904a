"""Mixed precision: Keras's policy while a step is made, its loss in float32, and a loss scale for float16."""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workloads.protocol import TrainStep, WorkloadError

if TYPE_CHECKING:
    import keras
    import tensorflow as tf


POLICIES: Mapping[str, str] = {"bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}
"""Precision → Keras's policy: layers compute in the smaller type, variables stay float32."""


def forget_models() -> None:
    """Let the next model reuse the layer names of the last one.

    Keeps the dtype policy, which `keras.backend.clear_session` would reset: a user's file may set it once for
    all models that its functions make.
    """
    import keras

    policy = keras.config.dtype_policy()
    keras.backend.clear_session()
    keras.config.set_dtype_policy(policy)


@contextmanager
def policy_of(precision: str) -> Iterator[None]:
    """Set Keras's dtype policy for a precision while a step is made and traced, then restore the old one.

    Args:
        precision: one of `POLICIES`; anything else leaves the policy to the workload.
    """
    import keras

    with under_policy(POLICIES.get(precision, keras.config.dtype_policy())):
        yield


@contextmanager
def under_policy(policy: "keras.DTypePolicy | str") -> Iterator[None]:
    """Set a Keras dtype policy while a step is made or traced, then restore the old one."""
    import keras

    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def in_precision(
    step: "TrainStep | Callable[..., tf.Tensor]", precision: str
) -> "TrainStep | Callable[..., tf.Tensor]":
    """Adapt a step made under `policy_of`: a float32 loss, and a scaled one for float16.

    The loss of a TrainStep becomes float32; for float16 its optimizer scales the loss, unless it already
    does. A whole `tf.function` is returned unchanged.

    Args:
        precision: one of `POLICIES`, the policy in force; for anything else the step is returned unchanged.
    Raises:
        WorkloadError: the workload has set another policy.
    """
    import keras

    if precision not in POLICIES:
        return step
    policy = keras.config.dtype_policy().name
    if policy != POLICIES[precision]:
        message = (
            f"train_step() must leave Keras's policy at {POLICIES[precision]} for the precision {precision}, "
            f"got {policy}; drop its call of set_dtype_policy or clear_session, or take float32 to run it as "
            "written"
        )
        raise WorkloadError(message, field="precision")
    if not isinstance(step, TrainStep):
        return step
    optimizer = step.optimizer
    scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if precision == "float16" and isinstance(optimizer, keras.optimizers.Optimizer) and not scales:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    return replace(step, loss=_in_float32(step.loss), optimizer=optimizer)


def _in_float32(loss: "Callable[[Any], tf.Tensor]") -> "Callable[[Any], tf.Tensor]":
    @functools.wraps(loss)
    def widened(*batch: object, **parts: object) -> "tf.Tensor":
        import tensorflow as tf

        value = loss(*batch, **parts)
        # Capture reports a step that returns no tensor.
        return tf.cast(value, tf.float32) if isinstance(value, tf.Tensor) else value

    return widened
