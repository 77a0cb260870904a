"""Models with control flow: loops of the first kind, nested too, and loops and branches of the second."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import keras
import tensorflow as tf
from model import N_CLASSES, mean_cross_entropy, on_labelled, on_rows, variable
from state_models import descent

from workloads.protocol import TrainStep

K = keras.optimizers
# A round's number, and rows of any number.
ROUNDS = (tf.TensorShape([]), tf.TensorShape([None, 3]))


@contextmanager
def first_control_flow() -> Iterator[None]:
    tf.compat.v1.disable_control_flow_v2()
    try:
        yield
    finally:
        tf.compat.v1.enable_control_flow_v2()


def imported(loss: Callable[..., tf.Tensor], *variables: tf.Variable) -> Callable[[tf.Tensor], tf.Tensor]:
    """A loss whose graph, with its gradient, was built outside: how loops of the first kind reach a step.

    Without the wrapper, tf.function would let nodes wait across the borders of loops, which cannot run.

    Args:
        loss: of rows, and for each variable a function that reads it where it is called.
    """
    with tf.Graph().as_default() as built, first_control_flow():
        x = tf.compat.v1.placeholder(tf.float32, [None, 3], name="x")
        handles = [
            tf.compat.v1.placeholder(tf.resource, [], name=f"handle_{i}") for i in range(len(variables))
        ]
        reads = [partial(_read, h, v.shape) for h, v in zip(handles, variables, strict=True)]
        value = loss(x, *reads)
        names = [t.name for t in (value, *tf.gradients(value, handles))]
    graph_def = built.as_graph_def()

    @partial(tf.compat.v1.wrap_function, signature=[tf.TensorSpec([None, 3], tf.float32)])
    def found(rows: tf.Tensor) -> list[tf.Tensor]:
        own = tf.compat.v1.get_default_graph()
        given = {"x": rows, **{f"handle_{i}": own.capture(v.handle) for i, v in enumerate(variables)}}
        return tf.graph_util.import_graph_def(graph_def, given, names, name="")

    def of(batch: tf.Tensor) -> tf.Tensor:
        value, *gradients = found(batch)
        value = tf.ensure_shape(value, [])
        # What is imported is on no tape: each sum is zero, and its gradient is the one that was imported.
        for v, gradient in zip(variables, gradients, strict=True):
            value += tf.reduce_sum((v - tf.stop_gradient(v)) * gradient)
        return value

    return of


def _read(handle: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    return tf.ensure_shape(tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32), shape)


def first_loop():
    """One loop that reads its variable in each round, around one variable that is read outside."""
    w, scale = variable("w", 3, 3), variable("scale", 3)

    def loss(x, read_w, read_scale):
        outside = read_scale()
        _, y = tf.while_loop(
            lambda i, _: i < 3, lambda i, y: (i + 1, tf.tanh(y @ read_w() + outside)), (0, x), ROUNDS
        )
        return tf.reduce_mean(y**2)

    return on_rows(descent(imported(loss, w, scale), w, scale))


def first_loops_nested():
    """A loop in a loop with a branch in it, all of which read the same variable."""
    w, bias = variable("w", 3, 3), variable("bias", 3)

    def loss(x, read_w, read_bias):
        def inner(j, y):
            times, plus = y @ read_w(), y + read_bias()
            return j + 1, tf.cond(tf.reduce_sum(y) > 0.0, lambda: times * 2.0, lambda: plus)

        def outer(i, y):
            return i + 1, tf.tanh(tf.while_loop(lambda j, _: j < i, inner, (0, y @ read_w()), ROUNDS)[1])

        _, y = tf.while_loop(lambda i, _: i < 3, outer, (0, x), ROUNDS)
        return tf.reduce_mean((y - 0.1) ** 2)

    return on_rows(descent(imported(loss, w, bias), w, bias))


def loops_and_branches():
    """Loops, branches, a switch and nested functions of the second kind, which read and hand on variables."""
    w, table, head = variable("w", 3, 3), variable("table", 5, 3), variable("head", 3, N_CLASSES)
    optimizer = K.Adam(0.05)
    optimizer.build([w, table, head])

    @tf.function
    def inner(x):
        return tf.tanh(x @ w)

    @tf.function
    def outer(x):
        for i in tf.range(3):
            looked_up = tf.nn.embedding_lookup(table, [i, (2 * i) % 5])
            x = inner(x) if tf.reduce_sum(x) > 0 else inner(x) + tf.reduce_mean(looked_up, 0)
        return tf.switch_case(tf.shape(x)[0] % 2, [lambda: x @ w, lambda: x + w[1]])

    def loss(batch):
        rows, labels = batch
        return mean_cross_entropy(labels, outer(rows) @ head)

    return on_labelled(TrainStep(loss=loss, variables=[w, table, head], optimizer=optimizer))


def recurrent():
    """A GRU, whose loop hands its variables on to the loop of its gradient."""
    layers = keras.layers
    net = keras.Sequential([keras.Input((3, 1)), layers.GRU(3), layers.Dense(N_CLASSES)])
    optimizer = K.Nadam(0.05)
    optimizer.build(net.trainable_variables)

    def loss(batch):
        rows, labels = batch
        return mean_cross_entropy(labels, net(rows[:, :, None], training=True))

    return on_labelled(TrainStep(loss=loss, variables=net.trainable_variables, optimizer=optimizer))


def looked_up_in_a_loop():
    """A table from which single elements are read in each round, which no read outside could stand for."""
    table, w = variable("table", 5, 3), variable("w", 3)

    def loss(x):
        total = tf.zeros_like(x[:, 0])
        for i in tf.range(3):
            total += tf.gather_nd(table, [[i, (2 * i) % 3]])[0] * tf.reduce_sum(x * w, axis=1)
        return tf.reduce_mean((total - 1.0) ** 2)

    return on_rows(descent(loss, table, w))
