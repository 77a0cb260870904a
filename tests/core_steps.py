"""Training steps that one core runs, as functions of the handles of its variables."""

from collections.abc import Sequence

import tensorflow as tf

Step = tuple[tf.Tensor, Sequence[tf.Operation]]
ops = tf.raw_ops


def momentum(w: tf.Tensor, m: tf.Tensor, x: tf.Tensor, *, n: int, shape: tuple[int, ...], dtype: str) -> Step:
    """Momentum by assignments, towards the mean of what the replicas have in x."""
    weight, slot = _read(w, shape, dtype), _read(m, shape, dtype)
    gradient = _mean(weight - _read(x, shape, dtype), n)
    moved = slot * 0.9 + gradient
    assignment = ops.AssignVariableOp(resource=m, value=moved)
    with tf.control_dependencies([assignment]):
        return _loss(weight), [ops.AssignSubVariableOp(resource=w, value=0.1 * moved)]


def adam(
    w: tf.Tensor,
    m: tf.Tensor,
    v: tf.Tensor,
    t: tf.Tensor,
    x: tf.Tensor,
    *,
    n: int,
    shape: tuple[int, ...],
    dtype: str,
) -> Step:
    """Adam by the op that updates in place; t is the step."""
    weight = _read(w, shape, dtype)
    gradient = _mean(weight - _read(x, shape, dtype), n)
    counted = ops.AssignAddVariableOp(resource=t, value=tf.ones([], dtype))
    with tf.control_dependencies([counted]):
        step = _read(t, (), dtype)
    beta1, beta2 = tf.constant(0.9, dtype), tf.constant(0.99, dtype)
    update = ops.ResourceApplyAdam(
        var=w,
        m=m,
        v=v,
        beta1_power=beta1**step,
        beta2_power=beta2**step,
        lr=tf.constant(0.05, dtype),
        beta1=beta1,
        beta2=beta2,
        epsilon=tf.constant(1e-7, dtype),
        grad=gradient,
    )
    return _loss(weight), [update]


def adam_by_assignments(
    w: tf.Tensor, m: tf.Tensor, v: tf.Tensor, x: tf.Tensor, *, n: int, shape: tuple[int, ...], dtype: str
) -> Step:
    """Adam without its correction, as optimizers of Keras write it."""
    weight = _read(w, shape, dtype)
    gradient = _mean(weight - _read(x, shape, dtype), n)
    first, second = _read(m, shape, dtype), _read(v, shape, dtype)
    moved = [
        ops.AssignAddVariableOp(resource=m, value=(gradient - first) * 0.1),
        ops.AssignAddVariableOp(resource=v, value=(tf.square(gradient) - second) * 0.01),
    ]
    with tf.control_dependencies(moved):
        new_first, new_second = _read(m, shape, dtype), _read(v, shape, dtype)
    change = new_first / (tf.sqrt(new_second) + 1e-7) * 0.05
    return _loss(weight), [ops.AssignSubVariableOp(resource=w, value=change)]


def clipped(w: tf.Tensor, m: tf.Tensor, x: tf.Tensor, *, n: int, shape: tuple[int, ...], dtype: str) -> Step:
    """Momentum with gradients clipped by their norm, for which sums are needed whole."""
    weight = _read(w, shape, dtype)
    gradient = _mean(weight - _read(x, shape, dtype), n)
    gradient = gradient * tf.minimum(tf.ones([], dtype), 0.5 / tf.norm(gradient))
    moved = _read(m, shape, dtype) * 0.9 + gradient
    return _loss(weight), [
        ops.AssignVariableOp(resource=m, value=moved),
        ops.AssignSubVariableOp(resource=w, value=0.1 * moved),
    ]


def read_after(
    w: tf.Tensor, m: tf.Tensor, x: tf.Tensor, *, n: int, shape: tuple[int, ...], dtype: str
) -> Step:
    """Momentum whose loss is of the weight after its update, and whose slot is read twice."""
    weight = _read(w, shape, dtype)
    moved = _read(m, shape, dtype) * 0.9 + _mean(weight - _read(x, shape, dtype), n)
    assignment = ops.AssignVariableOp(resource=m, value=moved)
    with tf.control_dependencies([assignment]):
        again = _read(m, shape, dtype)
    updated = ops.AssignSubVariableOp(resource=w, value=0.1 * again)
    with tf.control_dependencies([updated]):
        after = _read(w, shape, dtype)
    return _loss(after) + _loss(again) + _loss(weight), [updated]


def rows(w: tf.Tensor, m: tf.Tensor, x: tf.Tensor, *, n: int, shape: tuple[int, ...], dtype: str) -> Step:
    """An update of one row, which is done with the whole variable."""
    weight, slot = _read(w, shape, dtype), _read(m, shape, dtype)
    gradient = _mean(weight - _read(x, shape, dtype), n)
    row = ops.ResourceScatterSub(resource=w, indices=tf.constant([1]), updates=0.1 * gradient[1:2])
    with tf.control_dependencies([row]):
        rest = ops.AssignSubVariableOp(resource=w, value=0.05 * (gradient + slot))
    with tf.control_dependencies([slot]):
        assignment = ops.AssignVariableOp(resource=m, value=gradient)
    return _loss(weight), [rest, assignment]


def by_shapes(
    w: tf.Tensor, m: tf.Tensor, x: tf.Tensor, *, n: int, shape: tuple[int, ...], dtype: str
) -> Step:
    """Momentum whose values pass through other shapes, and checks that no value is infinite."""
    weight = _read(w, shape, dtype)
    summed = _mean(tf.reshape(weight - _read(x, shape, dtype), [-1]), n)
    gradient = tf.debugging.check_numerics(tf.ensure_shape(tf.reshape(summed, shape), shape), "gradient")
    slot = tf.reshape(tf.reshape(_read(m, shape, dtype), [1, -1]), shape)
    ratio = tf.debugging.check_numerics(gradient / (tf.abs(slot) + tf.square(weight)), "ratio")
    moved = slot * 0.5 + gradient + 1e-3 * tf.tanh(ratio)
    return _loss(weight), [
        ops.AssignVariableOp(resource=m, value=moved),
        ops.AssignSubVariableOp(resource=w, value=0.1 * moved),
    ]


def whole_numbers(
    w: tf.Tensor, m: tf.Tensor, x: tf.Tensor, *, n: int, shape: tuple[int, ...], dtype: str
) -> Step:
    """Whole numbers, of which some divide others."""
    weight, slot = _read(w, shape, dtype), _read(m, shape, dtype)
    summed = _sum(_read(x, shape, dtype), n)
    divided = (summed + slot) // weight
    return tf.cast(tf.reduce_sum(weight), tf.float32), [
        ops.AssignAddVariableOp(resource=m, value=divided),
        ops.AssignVariableOp(resource=w, value=weight + 1),
    ]


def halved(w: tf.Tensor, x: tf.Tensor, *, shape: tuple[int, ...]) -> Step:
    """Half of what there was, and the loss of what there is then."""
    weight = _read(w, shape, "float32")
    update = ops.AssignVariableOp(resource=w, value=weight * 0.5)
    with tf.control_dependencies([update]):
        return _loss(_read(w, shape, "float32")), [update]


def mixed(*handles: tf.Tensor, n: int, shapes: tuple[tuple[int, ...], ...]) -> Step:
    """Each variable moves towards its mean over all replicas, after all have read it."""
    losses, updates = [tf.zeros([])], []
    for handle, shape in zip(handles, shapes, strict=True):
        value = _read(handle, shape, "float32")
        losses.append(_loss(value))
        moved = value * 0.5 + _mean(value, n) * 0.25 + 0.125
        updates.append(ops.AssignVariableOp(resource=handle, value=moved))
    return tf.add_n(losses), updates


def grown(m: tf.Tensor, *, shape: tuple[int, ...]) -> Step:
    """A slot that grows in place."""
    half = _read(m, shape, "float32") * 0.5
    return tf.zeros([]), [ops.AssignAddVariableOp(resource=m, value=half)]


def shared(w: tf.Tensor, m: tf.Tensor, x: tf.Tensor, *, n: int, shape: tuple[int, ...], dtype: str) -> Step:
    """Momentum of a weight that all replicas have in common: each assigns the same after all have read."""
    weight, slot = _read(w, shape, dtype), _read(m, shape, dtype)
    moved = slot * 0.9 + _mean(weight - _read(x, shape, dtype), n)
    return _loss(weight), [
        ops.AssignVariableOp(resource=m, value=moved),
        ops.AssignVariableOp(resource=w, value=weight - 0.1 * moved),
    ]


def _read(handle: tf.Tensor, shape: tuple[int, ...], dtype: str) -> tf.Tensor:
    return tf.ensure_shape(ops.ReadVariableOp(resource=handle, dtype=tf.as_dtype(dtype)), shape)


def _sum(value: tf.Tensor, n: int) -> tf.Tensor:
    return ops.CrossReplicaSum(input=value, group_assignment=tf.constant([list(range(n))]))


def _mean(value: tf.Tensor, n: int) -> tf.Tensor:
    return _sum(value * tf.constant(1.0 / n, value.dtype), n)


def _loss(value: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.reduce_sum(tf.square(value)), tf.float32)
