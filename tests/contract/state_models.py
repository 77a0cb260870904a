"""Steps of plain gradient descent with state of every rule, two tapes, a table and side effects."""

import keras
import tensorflow as tf
from model import on_rows

from workloads import TrainStep


def kernel() -> tf.Variable:
    return tf.Variable([0.1, 0.2, 0.3], name="kernel")


def descent(loss, *variables):
    """A train step of plain gradient descent."""

    @tf.function
    def train(batch):
        with tf.GradientTape() as tape:
            value = loss(batch)
        for variable, gradient in zip(variables, tape.gradient(value, variables), strict=True):
            if gradient is not None:
                variable.assign_sub(0.1 * gradient)
        return value

    return train


def summed_state():
    w, seen = kernel(), tf.Variable(0.0, trainable=False, name="seen")

    def loss(x):
        seen.assign_add(tf.reduce_sum(x))
        return tf.reduce_mean((x * w) ** 2)

    return on_rows(descent(loss, w))


def counted_state():
    """The count is read by every replica before the first one's is kept."""
    w, count = kernel(), tf.Variable(1, trainable=False, name="count", dtype=tf.int64)

    def loss(x):
        now = count.read_value()
        value = tf.reduce_mean((x * w) ** 2) / tf.cast(now, tf.float32)
        count.assign(now * 2)
        return value

    return on_rows(descent(loss, w))


def summed_integers():
    w, count = kernel(), tf.Variable(0, trainable=False, name="count", dtype=tf.int64)

    def loss(x):
        count.assign_add(tf.shape(x, tf.int64)[0])
        return tf.reduce_mean((x * w) ** 2)

    return on_rows(descent(loss, w))


def averaged_state():
    w, mean = kernel(), tf.Variable([0.5, 0.5, 0.5], trainable=False, name="mean")

    def loss(x):
        value = tf.reduce_mean((x * w - mean) ** 2)
        mean.assign(0.9 * mean + 0.1 * tf.reduce_mean(x, 0))
        return value

    return on_rows(descent(loss, w))


def unused_and_shared():
    """A scalar, a variable that two layers share, and one that no loss reads."""
    w, scale = kernel(), tf.Variable(1.5, name="scale")
    unused = tf.Variable([1.0, 2.0], name="unused")

    def loss(x):
        return tf.reduce_mean((tf.tanh(x * w) * w * scale) ** 2)

    return on_rows(descent(loss, w, scale, unused))


def two_tapes():
    """Adversarial training: each tape has its own loss; both are differentiated by one variable."""
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

    return on_rows(train)


def looked_up():
    """Every replica looks rows up in a table of its own, which must have been filled."""
    w = kernel()
    pairs = tf.lookup.KeyValueTensorInitializer([0, 1], [0.5, 2.0], tf.int64, tf.float32)
    table = tf.lookup.StaticHashTable(pairs, 0.0)

    def loss(x):
        weights = table.lookup(tf.cast(x[:, 0] > 0.0, tf.int64))
        return tf.reduce_mean(weights * tf.reduce_sum((x * w) ** 2, axis=1))

    train = descent(loss, w)
    train.table = table  # a step finds its table only while somebody holds it
    return on_rows(train)


def looked_at_afterwards():
    """Print and check after the update; neither affects the time at which replicas read."""
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

    return on_rows(train)


def sampled_rows():
    """Updates wait for reads of rows that ops drew from states of their own, uniformly and as words."""
    table = tf.Variable([[0.1 * i, -0.05 * i, 0.3] for i in range(9)], name="table")
    w = kernel()

    def loss(x):
        drawn = tf.random.uniform([4], maxval=9, dtype=tf.int64)
        words, _, _ = tf.random.log_uniform_candidate_sampler(drawn[:, tf.newaxis], 1, 3, True, 9)
        rows = tf.nn.embedding_lookup(table, tf.concat([drawn, words], 0))
        return tf.reduce_mean(tf.matmul(x * w, rows, transpose_b=True) ** 2)

    optimizer = keras.optimizers.Adagrad(0.1)
    optimizer.build([table, w])
    return on_rows(TrainStep(loss=loss, variables=[table, w], optimizer=optimizer))
