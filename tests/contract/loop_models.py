"""Models with control flow: loops of the first kind, nested too, and loops and branches of the second."""

from collections.abc import Callable, Iterator, Sequence
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

    Without the wrapper, tf.function lets nodes wait across the borders of loops, which TensorFlow cannot run.

    Args:
        loss: function of rows, and for each variable of a function that reads it where it is called.
    """
    graph_def, names = _built(loss, variables)

    @partial(tf.compat.v1.wrap_function, signature=[tf.TensorSpec([None, 3], tf.float32)])
    def result(rows: tf.Tensor) -> list[tf.Tensor]:
        return _here(graph_def, names, rows, variables)

    return lambda batch: _with_gradients(result(batch), variables)


def imported_into_step(
    loss: Callable[..., tf.Tensor], *variables: tf.Variable
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Build the loop of `imported` directly among the step's own nodes."""
    graph_def, names = _built(loss, variables)
    return lambda batch: _with_gradients(_here(graph_def, names, batch, variables), variables)


def _built(
    loss: Callable[..., tf.Tensor], variables: Sequence[tf.Variable]
) -> tuple[tf.compat.v1.GraphDef, list[str]]:
    """A graph of the first TensorFlow, and the names of the loss and of its gradients there."""
    with tf.Graph().as_default() as built, first_control_flow():
        x = tf.compat.v1.placeholder(tf.float32, [None, 3], name="x")
        handles = [
            tf.compat.v1.placeholder(tf.resource, [], name=f"handle_{i}") for i in range(len(variables))
        ]
        reads = [partial(_read, h, v.shape) for h, v in zip(handles, variables, strict=True)]
        value = loss(x, *reads)
        gradients = [tf.convert_to_tensor(g) for g in tf.gradients(value, handles)]
    return built.as_graph_def(), [t.name for t in (value, *gradients)]


def _here(
    graph_def: tf.compat.v1.GraphDef, names: Sequence[str], rows: tf.Tensor, variables: Sequence[tf.Variable]
) -> list[tf.Tensor]:
    """The loss and its gradients, imported into the graph at hand."""
    own = tf.compat.v1.get_default_graph()
    inputs = {"x": rows, **{f"handle_{i}": own.capture(v.handle) for i, v in enumerate(variables)}}
    return tf.graph_util.import_graph_def(graph_def, inputs, names, name="")


def _with_gradients(outputs: Sequence[tf.Tensor], variables: Sequence[tf.Variable]) -> tf.Tensor:
    """The loss, for a tape: what is imported is on none, so each sum is zero, with the imported gradient."""
    value, *gradients = outputs
    value = tf.ensure_shape(value, [])
    for v, gradient in zip(variables, gradients, strict=True):
        value += tf.reduce_sum((v - tf.stop_gradient(v)) * gradient)
    return value


def _read(handle: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    return tf.ensure_shape(tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32), shape)


def first_loop(through=imported):
    """One loop that reads its variable in each round, around one variable that is read outside."""
    w, scale = variable("w", 3, 3), variable("scale", 3)

    def loss(x, read_w, read_scale):
        outside = read_scale()
        _, y = tf.while_loop(
            lambda i, _: i < 3, lambda i, y: (i + 1, tf.tanh(y @ read_w() + outside)), (0, x), ROUNDS
        )
        return tf.reduce_mean(y**2)

    return on_rows(descent(through(loss, w, scale), w, scale))


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


def first_loops_in_step():
    """Loops of the first kind among the step's own nodes, one in another, which read where they are.

    Of two reads no gradient tells that they have been made: a look-up, and the inner loop's condition.
    """
    w, table, limit = variable("w", 3, 3), variable("table", 5, 3), variable("limit", 1)

    def loss(x, read_w, read_table, read_limit):
        handle, _ = read_table.args

        def outer(i, y):
            rows = tf.raw_ops.ResourceGather(resource=handle, indices=[i, 4 - i, i], dtype=tf.float32)
            _, y = tf.while_loop(
                lambda j, _: (j < i) & (read_limit()[0] < 1.0),
                lambda j, y: (j + 1, y @ read_w()),
                (0, y),
                ROUNDS,
            )
            # TensorFlow has no gradient of a look-up in such a loop.
            rows = tf.reshape(tf.stop_gradient(rows), [3, 3])
            return i + 1, tf.tanh(y + tf.reduce_mean(rows, 0))

        _, y = tf.while_loop(lambda i, _: i < 3, outer, (0, x), ROUNDS)
        return tf.reduce_mean((y - 0.1) ** 2) + tf.reduce_sum(read_limit() ** 2) + tf.norm(read_table())

    return on_rows(descent(imported_into_step(loss, w, table, limit), w, table, limit))


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
