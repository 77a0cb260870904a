"""Owners of an optimizer's slots, as the optimizer itself knows them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import keras
import tensorflow as tf

from strategies.capture.boundary import AnyOptimizer, raw_variable

Variable: TypeAlias = tf.Variable | keras.Variable


def variables_of(optimizer: AnyOptimizer) -> Sequence[Variable]:
    """All variables that an optimizer has made."""
    return list(
        optimizer.variables if isinstance(optimizer, keras.optimizers.Optimizer) else optimizer.variables()
    )


def slots_of(
    optimizers: Sequence[AnyOptimizer], trained: Sequence[tf.Variable]
) -> Mapping[int, tuple[tf.Variable, str]]:
    """id of a slot's tf.Variable → the variable whose slot it is, and the kind of slot (`momentums`).

    Args:
        trained: variables that gradients were taken of.
    """
    owners: dict[int, tuple[tf.Variable, str]] = {}
    for optimizer in optimizers:
        slots = (
            _slots(optimizer)
            if isinstance(optimizer, keras.optimizers.Optimizer)
            else _slots_by_name(optimizer, trained)
        )
        for slot, owner, kind in slots:
            owners.setdefault(id(slot), (owner, kind))
    return owners


def _slots(optimizer: keras.optimizers.Optimizer) -> Iterator[tuple[tf.Variable, tf.Variable, str]]:
    """Keras keeps each kind of slot in a list that runs parallel to the variables it was built on."""
    trained = list(getattr(optimizer, "_trainable_variables", ()))
    for name, values in vars(optimizer).items():
        if isinstance(values, keras.optimizers.Optimizer):
            yield from _slots(values)
        elif isinstance(values, list) and values is not trained and len(values) == len(trained):
            if any(v is optimizer.iterations for v in values):
                continue  # all that the optimizer has, which may by chance be as many
            owned = {id(v) for v in optimizer.variables} - {id(v) for v in trained}
            for slot, owner in zip(values, trained, strict=True):
                if isinstance(slot, Variable) and id(slot) in owned:
                    yield raw_variable(slot), raw_variable(owner), name.strip("_")


def _slots_by_name(
    optimizer: tf.compat.v1.train.Optimizer, trained: Sequence[tf.Variable]
) -> Iterator[tuple[tf.Variable, tf.Variable, str]]:
    """TensorFlow's first optimizers tell the slot of a variable by its kind."""
    for kind in optimizer.get_slot_names():
        for owner in trained:
            slot = optimizer.get_slot(owner, kind)
            if slot is not None:
                yield slot, owner, kind
