"""What the shipped workloads lack: state that is summed or counted, unused variables, several tapes."""

import numpy as np
import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(120)]
tf = pytest.importorskip("tensorflow")

from cases import case_of  # noqa: E402
from matrix import EXACT  # noqa: E402

from strategies.tf_bridge.capture import capture  # noqa: E402

SPEC = tf.TensorSpec((3,), tf.float32)
TOPOLOGIES = [(2,), (1, 1), (2, 1)]


def fed(dtype=np.float32):
    random = np.random.default_rng(0)
    return [[random.normal(size=(5, 3)).astype(dtype)] for _ in range(4)]


def kernel(dtype=tf.float32):
    return tf.Variable(np.linspace(0.1, 0.3, 3).astype(np.float32), name="kernel", dtype=dtype)


def step_of(loss, *variables):
    """A train step of plain gradient descent."""

    @tf.function
    def train(batch):
        with tf.GradientTape() as tape:
            value = loss(batch)
        for variable, gradient in zip(variables, tape.gradient(value, variables), strict=True):
            if gradient is not None:
                variable.assign_sub(tf.cast(0.1, variable.dtype) * gradient)
        return value

    return train


def summed_state():
    w, seen = kernel(), tf.Variable(0.0, trainable=False, name="seen")

    def loss(x):
        seen.assign_add(tf.reduce_sum(x))
        return tf.reduce_mean((x * w) ** 2)

    return step_of(loss, w)


def counted_state():
    """The count is read by every replica before the first one's is kept."""
    w, count = kernel(), tf.Variable(1, trainable=False, name="count", dtype=tf.int64)

    def loss(x):
        now = count.read_value()
        value = tf.reduce_mean((x * w) ** 2) / tf.cast(now, tf.float32)
        count.assign(now * 2)
        return value

    return step_of(loss, w)


def summed_integers():
    w, count = kernel(), tf.Variable(0, trainable=False, name="count", dtype=tf.int64)

    def loss(x):
        count.assign_add(tf.shape(x, tf.int64)[0])
        return tf.reduce_mean((x * w) ** 2)

    return step_of(loss, w)


def averaged_state():
    w, mean = kernel(), tf.Variable([0.5, 0.5, 0.5], trainable=False, name="mean")

    def loss(x):
        value = tf.reduce_mean((x * w - mean) ** 2)
        mean.assign(0.9 * mean + 0.1 * tf.reduce_mean(x, 0))
        return value

    return step_of(loss, w)


def scalar_and_unused():
    w, scale = kernel(), tf.Variable(1.5, name="scale")
    unused = tf.Variable([1.0, 2.0], name="unused")
    return step_of(lambda x: tf.reduce_mean((x * w * scale) ** 2), w, scale, unused)


def two_tapes():
    """As in adversarial training: each tape has its own loss and both are differentiated by one variable."""
    w, other = kernel(), tf.Variable([0.2, 0.4, 0.6], name="other")

    @tf.function
    def train(x):
        with tf.GradientTape() as first:
            loss = tf.reduce_mean((x * w) ** 2)
        with tf.GradientTape() as second:
            penalty = tf.reduce_mean(tf.abs(x * w * other))
        (a,) = first.gradient(loss, [w])
        b, c = second.gradient(penalty, [w, other])
        w.assign_sub(0.1 * a + 0.01 * b)
        other.assign_sub(0.1 * c)
        return loss

    return train


def looked_up():
    """Every replica looks rows up in a table of its own, which must have been filled."""
    w = kernel()
    pairs = tf.lookup.KeyValueTensorInitializer([0, 1], [0.5, 2.0], tf.int64, tf.float32)
    table = tf.lookup.StaticHashTable(pairs, 0.0)

    def loss(x):
        weights = table.lookup(tf.cast(x[:, 0] > 0.0, tf.int64))
        return tf.reduce_mean(weights * tf.reduce_sum((x * w) ** 2, axis=1))

    train = step_of(loss, w)
    train.table = table  # a step finds its table only while somebody holds it
    return train


def looks_after_the_update():
    """What is printed and checked after the update has no part in when replicas have read."""
    w = kernel()

    @tf.function
    def train(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x * w) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        tf.print(w.read_value(), output_stream="file:///dev/null")
        tf.debugging.check_numerics(w.read_value(), "the update")
        tf.debugging.Assert(tf.reduce_all(w.read_value() < 1e6), [loss])
        return loss

    return train


STEPS = [
    summed_state,
    counted_state,
    summed_integers,
    averaged_state,
    scalar_and_unused,
    two_tapes,
    looked_up,
    looks_after_the_update,
]


@pytest.mark.parametrize("strategy", EXACT)
@pytest.mark.parametrize("replicas", TOPOLOGIES, ids=str)
@pytest.mark.parametrize("made", STEPS)
def test_equivalent(tmp_path, made, replicas, strategy):
    case = case_of(capture(made(), SPEC), fed(), tmp_path / f"{made.__name__}+plain")
    verdict = case.check(case.plan(strategy, replicas))
    assert verdict.equivalent, [v for v in verdict.variables if v.update_error > verdict.tolerance]
