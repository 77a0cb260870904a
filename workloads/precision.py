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
    """Let the next model have the names that the last one has had.

    The policy stays, which `keras.backend.clear_session` would forget: a user's file may set it once, for all
    that its functions make.
    """
    import keras

    policy = keras.config.dtype_policy()
    keras.backend.clear_session()
    keras.config.set_dtype_policy(policy)


@contextmanager
def policy_of(precision: str) -> Iterator[None]:
    """Keras's policy for a precision while a step is made and traced; that of before holds again after it.

    Args:
        precision: one of `POLICIES`; anything else leaves the policy to the workload.
    """
    import keras

    with under_policy(POLICIES.get(precision, keras.config.dtype_policy())):
        yield


@contextmanager
def under_policy(policy: "keras.DTypePolicy | str") -> Iterator[None]:
    """A policy of Keras's while a step is made or traced; that of before holds again after it."""
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
    """A step as it was made under `policy_of`, with a loss that a smaller type does not cut short.

    The loss of a TrainStep becomes float32, and for float16 its optimizer scales it, unless it does so
    already. A whole step is left as it is.

    Args:
        precision: as for `policy_of`, whose context is entered.
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
        # Whoever returns no tensor is told so by capture.
        return tf.cast(value, tf.float32) if isinstance(value, tf.Tensor) else value

    return widened
