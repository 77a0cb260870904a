"""Injected faults: gradients that faulty workers send in the steps in which a fault is active."""

from collections.abc import Sequence
from zlib import crc32

import tensorflow as tf

from strategies.numerics.rows import n_rows, together
from strategies.plan.faults import Fault, deviations, sending_wrong

_DRAW, _NOISE = 0, 1


def acts(step: tf.Tensor, fault: Fault) -> tf.Tensor:
    """True if a fault is active in a step: bool scalar.

    Args:
        step: step number, int64 scalar, from 0.
    """
    within = step >= fault.from_step
    if fault.to_step is not None:
        within &= step < fault.to_step
    if fault.rate >= 1.0:
        return within
    return within & (tf.random.stateless_uniform([], _seed(fault, step, _DRAW)) < fault.rate)


def faulty(
    value: tf.Tensor, step: tf.Tensor, *before: tf.Tensor, fault: Fault, unit: float, salt: int
) -> tf.Tensor:
    """Values that a faulty worker sends instead of a gradient, or of a sparse gradient's rows.

    Args:
        before: gradient of an earlier step, for the fault `stale` only.
        unit: value in `value`, which is already weighted, of a gradient of 1.
        salt: number that makes the random draws of gradients different.
    """
    match fault.kind:
        case "sign-flip" | "reverse":
            sent = value * tf.constant(-_scale(fault), value.dtype)
        case "random" | "gaussian":
            seed = _seed(fault, step, _NOISE + salt)
            drawn = tf.random.stateless_normal(tf.shape(value), seed, dtype=tf.float32)
            noise = tf.cast(drawn, value.dtype) * tf.constant(_scale(fault) * unit, value.dtype)
            sent = noise if fault.kind == "random" else value + noise
        case "nan" | "drop":
            sent = tf.fill(tf.shape(value), tf.constant(float("nan"), value.dtype))
        case "zero":
            sent = tf.zeros_like(value)
        case "stale":
            (sent,) = before
        case _:
            raise AssertionError(fault.kind)
    return tf.where(acts(step, fault), sent, value)


def delayed(value: tf.Tensor, *history: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Return the oldest gradient of the history, and the history for the next step.

    Args:
        history: gradients of the previous steps, latest first; zeros before the first step.
    """
    return history[-1], value, *history[:-1]


def flipped_labels(labels: tf.Tensor, step: tf.Tensor, *, fault: Fault) -> tf.Tensor:
    """Reverse labels: class c becomes the c-th from the end; vectors of class scores are reversed.

    Args:
        labels: class numbers, or float vectors with one value per class.
    """
    assert fault.classes is not None
    one_hot = (
        labels.dtype.is_floating
        and labels.shape.rank is not None
        and labels.shape.rank > 1
        and labels.shape[-1] == fault.classes
    )
    other = tf.reverse(labels, axis=[-1]) if one_hot else fault.classes - 1 - labels
    return tf.where(acts(step, fault), other, labels)


def colluding(blocks: Sequence[tf.Tensor], step: tf.Tensor, *, faults: Sequence[Fault]) -> list[tf.Tensor]:
    """Vectors sent by workers when faulty ones know the honest ones' vectors: [k, d] for k workers each.

    Args:
        blocks: vectors of all workers, in the same form. step: step number, int64 scalar.
    """
    seeing = [fault for fault in faults if fault.place == "others"]
    if not seeing:
        return list(blocks)
    vectors = together(blocks)
    bad = sending_wrong(faults)
    honest = tf.gather(vectors, [worker for worker in range(n_rows(blocks)) if worker not in bad])
    sent = vectors
    for fault in seeing:
        own = sent[fault.worker]
        other = _seeing(fault, vectors, honest, len(bad))
        row = tf.cond(acts(step, fault), lambda other=other: other, lambda own=own: own)
        sent = tf.tensor_scatter_nd_update(sent, [[fault.worker]], row[None])
    return [sent]


def next_step(step: tf.Tensor) -> tf.Tensor:
    """Number of the next step."""
    return step + 1


def _scale(fault: Fault) -> float:
    assert fault.scale is not None
    return fault.scale


def _seeing(fault: Fault, vectors: tf.Tensor, honest: tf.Tensor, n_bad: int) -> tf.Tensor:
    if fault.kind == "mimic":
        return honest[0] if fault.target is None else vectors[fault.target]
    mean = tf.reduce_mean(honest, axis=0)
    if fault.kind == "inner-product":
        return mean * tf.constant(-_scale(fault), mean.dtype)
    variance = tf.reduce_mean(tf.math.squared_difference(honest, mean), axis=0)
    scale = deviations(vectors.shape[0], n_bad) if fault.scale is None else fault.scale
    return mean - tf.sqrt(variance) * tf.constant(scale, mean.dtype)


def _seed(fault: Fault, step: tf.Tensor, salt: int) -> tf.Tensor:
    whose = crc32(f"{fault.seed} {fault.worker} {fault.kind}".encode()) % 2**31
    return tf.stack([tf.constant(whose * 2**32 + salt % 2**32, tf.int64), step])
